// Ops that are listed once and run several times: every period equals the previous one, shifted to later microbatches.
//
// Therefore the listed ops contain every adjacency that occurs at run time. Rules that match all ops of a step against
// those of other ranks expand the list (as_run).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ir/recurs.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

constexpr const char* kRule = "repeat does not recur";

std::string name_of(const BodyView& body, const Repeat::Ring& ring) {
  for (const Repeat::Member& member : body.body->repeat.members)
    if (&body.body->repeat.rings[member.ring] == &ring) return body.program->buffers[member.buffer].name;
  return "";
}

// All rings of a pool rotate together, because the ops after a repeat expect the pool's slots rotated by its
// microbatches. A buffer that has a slot for the whole step keeps it only if that is a full rotation.
void pools_turn_together(const BodyView& body, Findings& findings) {
  const Repeat& repeat = body.body->repeat;
  std::map<int, std::pair<int, int>> turns;  // by pool: slots and step
  std::set<int> moving;
  for (const Repeat::Ring& ring : repeat.rings) {
    if (ring.pool < 0) continue;
    const auto [known, fresh] = turns.try_emplace(ring.pool, ring.slots, ring.step);
    if (known->second != std::pair(ring.slots, ring.step))
      findings.add(kRule,
                   fmt::format("{}'{}' takes other turns in its pool than others", body.where(), name_of(body, ring)),
                   {});
    if (ring.step * repeat.left_out() % ring.slots != 0) moving.insert(ring.pool);
  }
  std::set<BufferId> members;
  for (const Repeat::Member& member : repeat.members) members.insert(member.buffer);
  for (const BufferId id : body.program->buffers.ids()) {
    const Buffer& buffer = body.program->buffers[id];
    if (buffer.pool >= 0 && moving.contains(buffer.pool) && !members.contains(id))
      findings.add(kRule, fmt::format("{}'{}' keeps its slot while its pool turns", body.where(), buffer.name),
                   buffer.site);
  }
}

// Only ops of a ring member's microbatch, and ops without a microbatch, access the member.
void members_are_of_one_microbatch(const BodyView& body, Findings& findings) {
  for (const Repeat::Member& member : body.body->repeat.members)
    for (const Access& access : body.accesses[member.buffer]) {
      const int microbatch = body.op(access.op).microbatch;
      if (microbatch >= 0 && microbatch != member.microbatch)
        findings.add(kRule,
                     fmt::format("{}{} uses '{}', which is microbatch {}'s", body.where(), body.describe(access.op),
                                 body.buffer_name(member.buffer), member.microbatch),
                     body.op(access.op).site);
    }
}

// Each microbatch is one view of the batch, and the views cover the batch.
void batch_is_read_whole(const BodyView& body, Findings& findings) {
  const Program& program = *body.program;
  const Repeat& repeat = body.body->repeat;
  std::map<BufferId, std::set<int64_t>> begins;
  std::map<BufferId, int64_t> bytes;
  const auto wrong = [&](BufferId buffer) {
    findings.add(kRule,
                 fmt::format("{}the microbatches that are listed and {} more are not all of '{}'", body.where(),
                             repeat.left_out(), body.buffer_name(buffer)),
                 program.buffers[buffer].site);
  };
  for (const Repeat::Slide& slide : repeat.slides) {
    const Tensor& view = program.tensors[slide.tensor];
    if (slide.bytes != view.bytes() || slide.bytes != bytes.try_emplace(view.buffer, slide.bytes).first->second)
      return wrong(view.buffer);
    begins[view.buffer].insert(view.byte_offset);
  }
  for (const auto& [buffer, listed] : begins) {
    int64_t all = 0;
    for (const Access& access : body.accesses[buffer])
      if (access.write) all = std::max(all, access.end);
    const int64_t end = std::ssize(listed) * bytes[buffer];
    if (*listed.begin() != 0 || *listed.rbegin() + bytes[buffer] != end ||
        end + repeat.left_out() * bytes[buffer] != all)
      wrong(buffer);
  }
}

}  // namespace

void repeats_recur(const JobView& view, Findings& findings) {
  int64_t left_out = -1;
  for (const BodyView& body : view.bodies) {
    if (body.is_init) continue;
    const Repeat& repeat = body.body->repeat;
    if (left_out >= 0 && repeat.left_out() != left_out)
      findings.add(
          kRule,
          fmt::format("{}repeats {} microbatches, and other ranks {}", body.where(), repeat.left_out(), left_out), {});
    left_out = repeat.left_out();
    if (!repeat.any()) continue;
    if (const auto problem = not_recurring(*body.program, *body.body))
      findings.add(kRule, fmt::format("{}{} {}", body.where(), body.describe(problem->op), problem->what),
                   body.op(problem->op).site);
    pools_turn_together(body, findings);
    batch_is_read_whole(body, findings);
    members_are_of_one_microbatch(body, findings);
  }
}

std::vector<Run> as_run(const BodyView& body, const std::vector<OpRef>& listed) {
  std::vector<Run> all, period;
  const Repeat& repeat = body.body->repeat;
  const auto write_period = [&] {
    for (int64_t copy = 1; copy <= repeat.times; ++copy)
      for (const Run& run : period) all.push_back({run.op, copy});
    period.clear();
  };
  for (const OpRef op : listed) {
    const bool repeats = repeat.any();
    const auto [first, count] = repeats ? repeat.ops[op.stream] : Repeat::Span{};
    const bool behind = repeats && op.index >= first + count;
    if (behind) write_period();
    all.push_back({op, behind ? repeat.times : 0});
    if (repeats && op.index >= first && !behind) period.push_back({op, 0});
  }
  write_period();
  return all;
}

}  // namespace prun::verify
