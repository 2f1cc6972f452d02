// Numeric attributes that follow from tensor shapes: the scale of a mean, the tokens that counts cover, the slots of an
// expert.
//
// Surprising fact: the number of microbatches is inferred from the batch: its size divided by the view that an op
// reads.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/text.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

constexpr const char* kRule = "wrong factor";

bool near(double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); }

// Microbatches of a step and the ranks that its samples or tokens are split over. 0 microbatches: no op reads a batch.
struct Share {
  int64_t microbatches = 0, ranks = 1;
};

Share share_of(const JobView& view, bool init) {
  Share share;
  std::set<std::string> axes;
  for (size_t id = init ? 0 : 1; id < view.bodies.size(); id += 2) {
    const BodyView& body = view.bodies[id];
    const Program& program = *body.program;
    Table<BufferId, int64_t> batch(program.buffers.size(), 0);  // elements of the batch in this buffer; 0 = none
    for (const OpRef ref : body.order.sequence()) {
      const Op& op = body.op(ref);
      for (const TensorId read : op.reads) {
        const int64_t held = batch[program.tensors[read].buffer];
        if (held == 0 || program.tensors[read].count() == 0) continue;
        share.microbatches = std::max(share.microbatches, held / program.tensors[read].count());
        if (op.def->moves || op.def->op_class == OpClass::transfer)
          for (const TensorId write : op.writes) batch[program.tensors[write].buffer] = program.tensors[write].count();
      }
      if (!op.is(ops::next_batch)) continue;
      for (const TensorId write : op.writes) batch[program.tensors[write].buffer] = program.tensors[write].count();
      for (const std::string& axis : split(op.attrs.text("axis"), ',')) axes.insert(axis);
      if (!op.attrs.text("tokens_axis").empty()) axes.insert(op.attrs.text("tokens_axis"));
    }
  }
  for (const std::string& axis : axes) share.ranks *= view.job->classes.front().mesh.size(axis);
  return share;
}

// A loss of sums over the samples of all ranks is the same on each, and its gradient is averaged over them.
double loss_factor(const Op& op, const Share& share) {
  const bool whole = op.attrs.has("gain") && op.def->loss == Loss::gradient;
  return op.attrs.number("coefficient", 1) * (whole ? static_cast<double>(share.ranks) : 1);
}

std::string loss_problem(const Program& program, const Op& op, const Share& share) {
  const Shape& shape = program.tensors[op.reads[op.def->counted]].shape;
  int64_t count = element_count(shape);
  if (op.def->counts_rows) count /= shape.back();
  const double scale = op.attrs.number("scale", 1),
               due = loss_factor(op, share) / static_cast<double>(count * share.microbatches);
  if (near(scale, due)) return "";
  return fmt::format(
      "multiplies a sum over {} {} by {}, and for {} over {} microbatch{} {} is due", count,
      op.def->counts_rows ? "rows" : "elements", scale,
      op.attrs.has("coefficient") ? fmt::format("{} times the mean", op.attrs.number("coefficient")) : "the mean",
      share.microbatches, share.microbatches == 1 ? "" : "es", due);
}

std::string balance_problem(const Program& program, const Op& op, const Share& share) {
  if ((op.attrs.number("aux") == 0 && op.attrs.number("z") == 0) || !op.attrs.has("tokens")) return "";
  const int64_t tokens = program.tensors[op.reads[1]].shape.front(), covered = op.attrs.integer("tokens");
  if (covered != tokens * share.ranks)
    return fmt::format("takes counts for those of {} tokens, and they are of {} on each of {} ranks", covered, tokens,
                       share.ranks);
  const double scale = op.attrs.number("scale"), due = 1.0 / static_cast<double>(tokens * share.microbatches);
  return near(scale, due) ? ""
                          : fmt::format("multiplies a sum over {} tokens by {}, and {} is due", tokens, scale, due);
}

// Slots are numbered with the capacity of the route op that assigned them, those of a rank's experts by runs of whole
// experts. `from`: the op that has written the slots.
std::string slots_problem(const Program& program, const Op& op, const Op* from,
                          const Table<TensorId, const Op*>& writer) {
  const Op* take = from != nullptr && from->is(ops::take_slots) ? from : nullptr;
  const Op* route = take != nullptr ? writer[take->reads[0]] : from;
  if (route == nullptr || !route->is(ops::route)) return "";
  const TensorId experts = op.is(ops::dispatch) || op.is(ops::dispatch_grad)
                               ? op.is(ops::dispatch) ? op.writes[0] : op.reads[1]
                               : op.reads[0];
  const int64_t tokens = program.tensors[route->writes[1]].shape.front(), slots = program.tensors[experts].shape.at(1);
  const int64_t capacity = route->attrs.integer("capacity"), numbered = capacity == 0 ? tokens : capacity;
  if (take != nullptr) {
    const std::string axis = take->attrs.text("axis");
    const int64_t pieces = take->attrs.integer("pieces"), run = take->attrs.integer("run");
    const int64_t all = program.tensors[route->writes[2]].shape.front() * numbered;
    if (program.mesh.has(axis) && pieces != program.mesh.size(axis))
      return fmt::format("takes the slots of one of {} ranks, and {} are along {}", pieces, program.mesh.size(axis),
                         axis);
    if (run < 1 || run % numbered != 0 || all % (run * pieces) != 0)
      return fmt::format("takes slots in runs of {}, and an expert has {} of {}", run, numbered, all);
  }
  if (op.attrs.has("round"))  // a window of the positions of all tokens
    return numbered == tokens ? "" : fmt::format("takes a round of slots, and they were numbered for {}", numbered);
  return numbered == slots ? ""
                           : fmt::format("takes {} slots an expert, and they were numbered for {}", slots, numbered);
}

// The gradient of a routing computes with the same settings as the routing.
std::string routing_problem(const Op& op, const Op* route) {
  if (route == nullptr || !route->is(ops::route)) return "";
  for (const auto& [name, value] : route->attrs.values()) {
    if (name == "biased" || name == "groups" || name == "groups_kept" || name == "workspace") continue;
    if (!op.attrs.has(name) || attr_text(op.attrs.values().at(name)) != attr_text(value))
      return fmt::format("has {} {}, and the routing has {}", name,
                         op.attrs.has(name) ? attr_text(op.attrs.values().at(name)) : "unset", attr_text(value));
  }
  return "";
}

// The rounds of dropless mixtures in a body: each round adds its part of a sum, once.
class Rounds {
 public:
  Rounds(const BodyView& body, Findings& findings) : body_(body), findings_(findings) {}

  // `writer`: the op that has written a tensor last; null = none.
  void take(OpRef ref, const Table<TensorId, const Op*>& writer) {
    const Op& op = body_.op(ref);
    if (!op.attrs.has("round")) return;
    const int64_t round = op.attrs.integer("round");
    const std::optional<Sum> sum = sum_of(op);
    for (const size_t r : slotted_reads(op)) {
      const Op* from = writer[op.reads[r]];
      if (from == nullptr || !from->attrs.has("round") || from->attrs.integer("round") == round) continue;
      report(ref, fmt::format("is of round {}, and reads a value of round {}", round, from->attrs.integer("round")));
    }
    if (!sum) return;
    const Shape& slotted = body_.program->tensors[op.reads[sum->slotted]].shape;
    Parts& parts = parts_[{sum->op, op.reads[sum->choices]}];
    parts.first = ref;
    parts.times[round]++;
    if (sum->counts_tokens)
      parts.rounds = (body_.program->tensors[op.reads[sum->choices]].shape.front() + slotted.at(1) - 1) / slotted.at(1);
  }

  void check() const {
    for (const auto& [key, parts] : parts_) {
      const int64_t rounds = std::max(parts.rounds, parts.times.rbegin()->first + 1);
      for (int64_t round = 0; round < rounds; round++) {
        const auto found = parts.times.find(round);
        const int times = found == parts.times.end() ? 0 : found->second;
        if (times == parts.times.begin()->second && times > 0) continue;
        report(parts.first, times == 0
                                ? fmt::format("is one of {} rounds, and round {} is missing", rounds, round)
                                : fmt::format("is one of {} rounds, and round {} runs {} times", rounds, round, times));
        break;
      }
      if (parts.rounds > 0 && rounds > parts.rounds)
        report(parts.first, fmt::format("is one of {} rounds, and {} have all tokens", rounds, parts.rounds));
    }
  }

 private:
  struct Sum {
    const OpDef* op;
    size_t choices, slotted;  // operands: the slots or numbers of choices; the experts' slots
    bool counts_tokens;
  };
  struct Parts {
    OpRef first;
    std::map<int64_t, int> times;  // by round
    int64_t rounds = 0;            // 0 = unknown
  };

  static std::optional<Sum> sum_of(const Op& op) {
    if (op.is(ops::combine)) return Sum{&ops::combine, 1, 0, true};
    if (op.is(ops::combine_grad)) return Sum{&ops::combine_grad, 1, 0, true};
    if (op.is(ops::dispatch_grad)) return Sum{&ops::dispatch_grad, 0, 1, true};
    if (op.is(ops::expert_linear_dw) || op.is(ops::expert_linear_dw_add))
      return Sum{&ops::expert_linear_dw, 2, 0, false};
    return std::nullopt;
  }
  // Returns the operands with rows of the experts' slots.
  static std::vector<size_t> slotted_reads(const Op& op) {
    if (op.is(ops::dispatch)) return {};
    if (op.is(ops::dispatch_grad)) return {1};
    if (op.is(ops::expert_linear_dw) || op.is(ops::expert_linear_dw_add)) return {0, 1};
    return {0};
  }
  void report(OpRef ref, const std::string& problem) const {
    findings_.add(kRule, fmt::format("{}{} {}", body_.where(), body_.describe(ref), problem), body_.op(ref).site);
  }

  const BodyView& body_;
  Findings& findings_;
  std::map<std::pair<const OpDef*, TensorId>, Parts> parts_;
};

}  // namespace

void factors_are_right(const JobView& view, Findings& findings) {
  if (!trains(*view.job)) return;
  const Share of_step = share_of(view, false), of_init = share_of(view, true);
  for (size_t id = 0; id < view.bodies.size(); id++) {
    const BodyView& body = view.bodies[id];
    const Program& program = *body.program;
    const Share& share = body.is_init ? of_init : of_step;
    Table<TensorId, const Op*> writer(program.tensors.size(), nullptr);
    Rounds rounds(body, findings);
    for (const OpRef ref : body.order.sequence()) {
      const Op& op = body.op(ref);
      rounds.take(ref, writer);
      std::string problem;
      if (op.def->loss != Loss::none && share.microbatches > 0) problem = loss_problem(program, op, share);
      if (op.is(ops::route_grad) && share.microbatches > 0) problem = balance_problem(program, op, share);
      const int slots = op.is(ops::dispatch) || op.is(ops::combine) || op.is(ops::combine_grad) ? 1
                        : op.is(ops::dispatch_grad)                                             ? 0
                                                                                                : -1;
      if (op.is(ops::route_grad) && problem.empty()) problem = routing_problem(op, writer[op.reads[3]]);
      if (slots >= 0) problem = slots_problem(program, op, writer[op.reads[slots]], writer);
      if (!problem.empty())
        findings.add(kRule, fmt::format("{}{} {}", body.where(), body.describe(ref), problem), op.site);
      for (const TensorId write : op.writes) writer[write] = &op;
    }
    rounds.check();
  }
}

}  // namespace prun::verify
