// Sends and receives of each pair of ranks match one to one, in order. This file also classifies the transports that
// can carry them.
//
// The messages of a pair and lane form a queue: the k-th send matches the k-th receive. Surprising fact: among
// transports that only delay sends, rendezvous is the strictest. A queue per pair is stricter still, because there a
// receive blocks all sends issued after it, on any stream.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "verify/view.h"

namespace prun::verify {
namespace {

// One end of a queue: the sends to, or receives from, the rank at this offset along an axis.
struct End {
  Lane lane;
  std::string axis;  // as named by the ops
  int offset = 0;
  bool sends = false;
  auto operator<=>(const End&) const = default;
};

using Ends = std::map<End, std::vector<OpRef>>;

Ends ends_of(const BodyView& body) {
  Ends ends;
  const Program& program = *body.program;
  for (const OpRef ref : body.talks) {
    const Op& op = body.op(ref);
    if (op.point_to_point() && program.mesh.size(op.axis) > 1)
      ends[{lane_of(program, op), op.axis, peer_offset(program.mesh, op), op.sends()}].push_back(ref);
  }
  return ends;
}

std::string message_text(const BodyView& body, OpRef ref) {
  const Op& op = body.op(ref);
  return fmt::format("{}, tag {}{}", body.describe(ref), op.attrs.integer("tag"),
                     op.microbatch < 0 ? "" : fmt::format(" of microbatch {}", op.microbatch));
}

int64_t tag_of(const BodyView& body, Run run) {
  int64_t tag = body.op(run.op).attrs.integer("tag");
  if (run.copy == 0) return tag;
  const Repeat& repeat = body.body->repeat;
  for (const Repeat::Growth& growth : repeat.growths)
    if (growth.stream == run.op.stream && growth.index == run.op.index && growth.attr == "tag")
      tag += growth.by * run.copy * repeat.microbatches;
  return tag;
}

// Returns the first property that differs; null if they match.
const char* difference(const BodyView& a, Run sent, const BodyView& b, Run received) {
  const OpRef send = sent.op, receive = received.op;
  const Signature x = signature_of(*a.program, a.op(send)), y = signature_of(*b.program, b.op(receive));
  if (a.op(send).one_sided() != b.op(receive).one_sided()) return "kind";
  if (tag_of(a, sent) != tag_of(b, received)) return "tag";
  if (x.dtype != y.dtype) return "dtype";
  return x.count != y.count ? "count" : nullptr;
}

void compare(const BodyView& a, const std::vector<OpRef>& listed_sends, int from, const BodyView& b,
             const std::vector<OpRef>& listed_receives, int to, const Lane& lane, Findings& findings) {
  constexpr const char* kRule = "messages differ";
  const std::vector<Run> sends = as_run(a, listed_sends), receives = as_run(b, listed_receives);
  for (size_t i = 0; i < std::max(sends.size(), receives.size()); i++) {
    const bool sent = i < sends.size(), received = i < receives.size();
    const char* what = sent && received ? difference(a, sends[i], b, receives[i]) : "number";
    if (what == nullptr) continue;
    findings.add(
        kRule,
        fmt::format("message {} from rank {} to rank {} along {}: send and receive differ in {}\n  rank {}: {}\n"
                    "  rank {}: {}",
                    i, from, to, lane_text(lane), what, from, sent ? message_text(a, sends[i].op) : "nothing more", to,
                    received ? message_text(b, receives[i].op) : "nothing more"),
        sent ? a.op(sends[i].op).site : b.op(receives[i].op).site);
    return;
  }
}

void require_order(const BodyView& body, const std::vector<OpRef>& ops, Findings& findings) {
  for (size_t i = 1; i < ops.size(); i++) {
    if (body.order.before(ops[i - 1], ops[i])) continue;
    findings.add("unordered messages",
                 fmt::format("{}{} and {} go the same way, and neither waits for the other", body.where(),
                             body.describe(ops[i - 1]), body.describe(ops[i])),
                 body.op(ops[i]).site);
  }
}

// Returns all messages between `rank` and `other` in the order of issue; nullopt if timing determines that order.
using Message = std::tuple<bool, Lane, int64_t>;  // sent by the lower rank, lane, tag
std::optional<std::vector<Message>> issued(const BodyView& body, int rank, int other) {
  std::vector<Message> list;
  OpRef last{-1, 0};
  for (const OpRef ref : body.talks) {
    const Op& op = body.op(ref);
    if (!op.point_to_point() || peer_rank(body.program->mesh, op, rank) != other) continue;
    if (last.stream >= 0 && !body.order.before(last, ref)) return std::nullopt;
    last = ref;
    list.emplace_back(op.sends() == (rank < other), lane_of(*body.program, op), op.attrs.integer("tag"));
  }
  return list;
}

}  // namespace

bool sends_messages(const BodyView& body) {
  return std::any_of(body.talks.begin(), body.talks.end(), [&](OpRef ref) { return body.op(ref).point_to_point(); });
}

void messages_match(const JobView& view, Findings& findings) {
  const Job& job = *view.job;
  const Mesh& mesh = job.classes.front().mesh;
  for (const size_t init_or_step : {0u, 1u}) {
    std::vector<Ends> ends;
    for (size_t id = 0; id < job.classes.size(); id++) {
      ends.push_back(ends_of(view.bodies[id * 2 + init_or_step]));
      for (const auto& [end, ops] : ends.back()) require_order(view.bodies[id * 2 + init_or_step], ops, findings);
    }
    std::set<std::tuple<size_t, size_t, End>> compared;
    for (int rank = 0; rank < mesh.ranks(); rank++) {
      const size_t a = job.class_of_rank[rank];
      for (const auto& [end, ops] : ends[a]) {
        const BodyView& mine = view.bodies[a * 2 + init_or_step];
        const Op& op = mine.op(ops.front());
        if (end.offset == 0) {
          findings.add("messages differ",
                       fmt::format("{}{} is to the rank itself", mine.where(), mine.describe(ops.front())), op.site);
          continue;
        }
        const int other = peer_rank(mesh, op, rank);
        const size_t b = job.class_of_rank[other];
        if (!compared.insert({a, b, end}).second) continue;
        const End facing{end.lane, end.axis, (mesh.size(end.axis) - end.offset) % mesh.size(end.axis), !end.sends};
        const auto found = ends[b].find(facing);
        const std::vector<OpRef> partners = found == ends[b].end() ? std::vector<OpRef>() : found->second;
        const BodyView& its = view.bodies[b * 2 + init_or_step];
        if (end.sends) {
          compare(mine, ops, rank, its, partners, other, end.lane, findings);
        } else if (partners.empty()) {
          compare(its, partners, other, mine, ops, rank, end.lane, findings);
        }
      }
    }
  }
}

bool queues_agree(const JobView& view) {
  const Job& job = *view.job;
  const Mesh& mesh = job.classes.front().mesh;
  for (int rank = 0; rank < mesh.ranks(); rank++) {
    const int a = job.class_of_rank[rank];
    for (const BodyView* body : {&view.bodies[a * 2], &view.bodies[a * 2 + 1]}) {
      std::set<int> peers;
      for (const OpRef ref : body->talks)
        if (body->op(ref).point_to_point()) peers.insert(peer_rank(mesh, body->op(ref), rank));
      for (const int other : peers) {
        const int b = job.class_of_rank[other];
        const BodyView& its = view.bodies[b * 2 + (body->is_init ? 0 : 1)];
        const auto here = issued(*body, rank, other), there = issued(its, other, rank);
        if (!here || !there || *here != *there) return false;
      }
    }
  }
  return true;
}

}  // namespace prun::verify
