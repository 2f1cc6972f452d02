// All members of a group issue the same collectives in the same order, and each collective fits its group.
//
// Surprising fact: classes are compared, not ranks, so a group of 1,024 ranks of one class costs nothing.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ir/ops.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

const Tensor* first_of(const Program& program, const std::vector<TensorId>& ids) {
  return ids.empty() ? nullptr : &program.tensors[ids.front()];
}

void check_fit(const BodyView& body, OpRef ref, Findings& findings) {
  constexpr const char* kRule = "collective does not fit its group";
  const Program& program = *body.program;
  const Op& op = body.op(ref);
  const auto bad = [&](const std::string& what) {
    findings.add(kRule, fmt::format("{}{} {}", body.where(), body.describe(ref), what), op.site);
  };
  const int size = program.mesh.size(op.axis);
  const CollTraits& kind = op.def->collective();
  if (kind.rooted) {
    const int64_t root = op.attrs.integer("root");
    if (root < 0 || root >= size) bad(fmt::format("has root {} in a group of {} along {}", root, size, op.axis));
  }
  if (kind.reduces && !parse_redop(op.attrs.text("op", "sum"))) {
    bad(fmt::format("has the unknown reduction '{}'", op.attrs.text("op")));
  }
  const Tensor* in = first_of(program, op.reads);
  const Tensor* out = first_of(program, op.writes);
  if (in == nullptr || out == nullptr) return;
  if (in->dtype != out->dtype)
    bad(fmt::format("reads {} and writes {}", dtype_name(in->dtype), dtype_name(out->dtype)));
  const int64_t in_share = kind.whole_input && !kind.whole_output ? size : 1,
                out_share = kind.whole_output && !kind.whole_input ? size : 1;
  if (in->count() * out_share != out->count() * in_share) {
    bad(fmt::format("reads {} elements and writes {} in a group of {} along {}; it should write {}", in->count(),
                    out->count(), size, op.axis, in->count() * out_share / in_share));
  }
}

std::string ordinal(size_t index) {
  const size_t n = index + 1;
  const char* suffix = n % 100 / 10 == 1 ? "th" : n % 10 == 1 ? "st" : n % 10 == 2 ? "nd" : n % 10 == 3 ? "rd" : "th";
  return fmt::format("{}{}", n, suffix);
}

std::string difference(const Signature& a, const Signature& b) {
  if (a.kind != b.kind) return "kind";
  if (a.dtype != b.dtype) return "dtype";
  if (a.count != b.count) return "count";
  return a.redop != b.redop ? "reduction" : "root";
}

// Describes how two lists relate that first differ at `at`.
std::string relation(const std::vector<Signature>& a, const std::vector<Signature>& b, size_t at, int rank_a,
                     int rank_b) {
  const auto without = [at](std::vector<Signature> list) {
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
    return list;
  };
  if (a.size() == b.size() + 1 && without(a) == b) return fmt::format("rank {} leaves one out", rank_b);
  if (b.size() == a.size() + 1 && without(b) == a) return fmt::format("rank {} leaves one out", rank_a);
  if (a.size() == b.size() && std::is_permutation(a.begin(), a.end(), b.begin()))
    return "they are the same ones in another order";
  if (at < a.size() && at < b.size()) return "they differ in " + difference(a[at], b[at]);
  return fmt::format("rank {} issues {}, rank {} {}", rank_a, a.size(), rank_b, b.size());
}

std::vector<Signature> signatures(const BodyView& body, const std::vector<OpRef>& ops) {
  std::vector<Signature> list;
  list.reserve(ops.size());
  for (const OpRef ref : ops) list.push_back(signature_of(*body.program, body.op(ref)));
  return list;
}

using Lanes = std::map<Lane, std::vector<OpRef>>;

void compare(const BodyView& a, const Lanes& lanes_a, int rank_a, const BodyView& b, const Lanes& lanes_b, int rank_b,
             const std::string& axis, Findings& findings) {
  std::set<Lane> lanes;
  for (const Lanes* side : {&lanes_a, &lanes_b})
    for (const auto& [lane, ops] : *side)
      if (lane.axis == axis) lanes.insert(lane);
  for (const Lane& lane : lanes) {
    const auto found_a = lanes_a.find(lane), found_b = lanes_b.find(lane);
    const std::vector<OpRef> ops_a = found_a == lanes_a.end() ? std::vector<OpRef>() : found_a->second;
    const std::vector<OpRef> ops_b = found_b == lanes_b.end() ? std::vector<OpRef>() : found_b->second;
    const std::vector<Signature> list_a = signatures(a, ops_a), list_b = signatures(b, ops_b);
    if (list_a == list_b) continue;
    size_t at = 0;
    while (at < list_a.size() && at < list_b.size() && list_a[at] == list_b[at]) at++;
    const auto side = [at](const BodyView& body, const std::vector<OpRef>& ops) {
      return at < ops.size() ? body.describe(ops[at]) : std::string("nothing more");
    };
    findings.add(
        "collectives differ",
        fmt::format("the {} collective along {} is not the same on ranks {} and {}; {}\n  rank {}: {}\n  rank {}: {}",
                    ordinal(at), lane_text(lane), rank_a, rank_b, relation(list_a, list_b, at, rank_a, rank_b), rank_a,
                    side(a, ops_a), rank_b, side(b, ops_b)),
        at < ops_a.size() ? a.op(ops_a[at]).site : b.op(ops_b[at]).site);
  }
}

}  // namespace

std::map<Lane, std::vector<OpRef>> lanes_of(const BodyView& body) {
  Lanes lanes;
  for (const OpRef ref : body.talks) {
    const Op& op = body.op(ref);
    if (!op.point_to_point() && !op.offers() && body.program->mesh.size(op.axis) > 1)
      lanes[lane_of(*body.program, op)].push_back(ref);
  }
  return lanes;
}

Signature signature_of(const Program& program, const Op& op) {
  Signature signature;
  const CollTraits& kind = op.def->collective();
  signature.kind = op.def;
  // Takes the count of the tensor whose size is equal on the root and the other ranks.
  const bool by_output = kind.whole_input && !kind.whole_output;
  const Tensor* tensor = first_of(program, by_output ? op.writes : op.reads);
  if (tensor == nullptr) tensor = first_of(program, by_output ? op.reads : op.writes);
  if (tensor != nullptr) {
    signature.dtype = tensor->dtype;
    signature.count = tensor->count();
  }
  if (kind.reduces) signature.redop = op.attrs.text("op", "sum");
  if (kind.rooted) signature.root = op.attrs.integer("root");
  return signature;
}

std::string Signature::text() const {
  std::string text = std::string(kind->name);
  if (kind != &ops::barrier) text += fmt::format(" {}[{}]", dtype_name(dtype), count);
  if (!redop.empty()) text += " " + redop;
  if (root >= 0) text += fmt::format(" root {}", root);
  return text;
}

void collectives_fit_their_group(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies) {
    for (const OpRef ref : body.talks) check_fit(body, ref, findings);
  }
}

void collectives_of_a_lane_are_ordered(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies) {
    for (const auto& [lane, ops] : lanes_of(body)) {
      for (size_t i = 1; i < ops.size(); i++) {
        if (body.order.before(ops[i - 1], ops[i])) continue;
        findings.add("unordered collectives",
                     fmt::format("{}{} and {} both use {}, and neither waits for the other", body.where(),
                                 body.describe(ops[i - 1]), body.describe(ops[i]), lane_text(lane)),
                     body.op(ops[i]).site);
      }
    }
  }
}

void collectives_match_across_ranks(const JobView& view, Findings& findings) {
  const Job& job = *view.job;
  if (job.classes.size() < 2) return;
  const Mesh& mesh = job.classes.front().mesh;
  std::vector<std::string> axes = {kWorld};
  for (const Axis& axis : mesh.axes())
    if (axis.size > 1 && axis.size < mesh.ranks()) axes.push_back(axis.name);
  std::vector<Lanes> lanes;
  for (const BodyView& body : view.bodies) {
    lanes.push_back(lanes_of(body));
    for (auto& [lane, ops] : lanes.back()) {
      std::vector<OpRef> run;
      for (const Run& each : as_run(body, ops)) run.push_back(each.op);
      ops = std::move(run);
    }
  }
  for (const std::string& axis : axes) {
    std::set<std::pair<int, int>> compared;
    for (int leader = 0; leader < mesh.ranks(); leader++) {
      if (mesh.index(axis, leader) != 0) continue;
      const int class_a = job.class_of_rank[leader];
      for (const int rank : mesh.group(axis, leader)) {
        const int class_b = job.class_of_rank[rank];
        if (class_a == class_b || !compared.insert({class_a, class_b}).second) continue;
        for (const size_t init_or_step : {0u, 1u}) {
          const size_t a = class_a * 2 + init_or_step, b = class_b * 2 + init_or_step;
          compare(view.bodies[a], lanes[a], leader, view.bodies[b], lanes[b], rank, axis, findings);
        }
      }
    }
  }
}

}  // namespace prun::verify
