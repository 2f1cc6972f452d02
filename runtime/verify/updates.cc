// Parameters over a step: read first, then updated once, and what is kept as a copy of them is made again afterwards.
//
// Surprising fact: a copy may also be made at the beginning of the next step, before anything reads it; then it is not
// stale at the end, because nobody relies on it.
#include <fmt/format.h>

#include <algorithm>

#include "verify/values.h"

namespace prun::verify {
namespace {

void update(Moment& moment) {
  for (size_t w = 0; w < moment.writes.size(); w++) {
    const auto at = std::find(moment.op.reads.begin(), moment.op.reads.end(), moment.op.writes[w]);
    if (at == moment.op.reads.end()) continue;
    for (const Segment& segment : moment.reads[at - moment.op.reads.begin()]) {
      const OpRef writer = segment.held.writer;
      if (writer.stream < 0 || !is_optimizer(moment.body.op(writer))) continue;
      moment.report("updated twice",
                    fmt::format("updates bytes {}..{} of buffer '{}' for the second time in a step", segment.begin,
                                segment.end, moment.body.buffer_name(moment.write_tensors[w]->buffer)),
                    segment.held);
      break;
    }
  }
  for (const size_t w : {size_t{0}, updated_by(moment.op)}) {  // the parameters and a copy of them
    if (w == moment.writes.size()) continue;
    for (Segment& segment : moment.writes[w]) segment.held.age = Age::after_update;
  }
}

// Every element of a clipped gradient is in the norm that clips it, once. Twins of tied weights are in another rank's.
void check_norm(const Moment& moment) {
  const bool clips = moment.op.reads.size() > updated_by(moment.op) + 1;
  if (!clips) return;
  const Segments& grads = moment.reads[0];
  const bool any = std::any_of(grads.begin(), grads.end(), [](const Segment& s) { return s.held.norms > 0; });
  for (const Segment& segment : grads) {
    const int norms = segment.held.norms;
    if (norms == 1 || (norms == 0 && !any && moment.body.many_classes)) continue;
    moment.report("norm of gradients",
                  fmt::format("clips bytes {}..{} of buffer '{}' by a norm that counts them {}", segment.begin,
                              segment.end, moment.body.buffer_name(moment.read_tensors[0]->buffer),
                              norms == 0 ? "not at all" : fmt::format("{} times", norms)),
                  segment.held);
    return;
  }
}

}  // namespace

void follow_updates(Moment& moment) {
  const Phase phase = moment.op.phase;
  if (is_optimizer(moment.op)) {
    check_norm(moment);
    return update(moment);
  }
  Age oldest = Age::none;
  for (size_t r = 0; r < moment.reads.size(); r++) {
    for (const Segment& segment : moment.reads[r]) {
      const Held& held = segment.held;
      if (held.age == Age::none) continue;
      if (oldest == Age::none || held.age < oldest) oldest = held.age;
      if (held.age != Age::after_update || (phase != Phase::forward && phase != Phase::backward)) continue;
      moment.report("read after update",
                    fmt::format("reads bytes {}..{} of buffer '{}', parameters that the step has already updated",
                                segment.begin, segment.end, moment.body.buffer_name(moment.read_tensors[r]->buffer)),
                    held);
      return;
    }
  }
  if (!moment.op.def->moves) return;
  for (Segments& write : moment.writes)
    for (Segment& segment : write) segment.held.age = oldest;
}

void check_update_at_end(const BodyView& step, BufferId id, const Segments& end, Findings& findings) {
  const Buffer& buffer = step.program->buffers[id];
  for (const Segment& segment : end) {
    const Held& held = segment.held;
    const auto bytes = [&] {
      return fmt::format("{}bytes {}..{} of buffer '{}'", step.where(), segment.begin, segment.end, buffer.name);
    };
    if (held.writer.stream < 0) {
      findings.add("never updated",
                   fmt::format("{} are {}, and nothing in a step writes them", bytes(),
                               buffer.role == Role::param ? "parameters" : "optimizer state"),
                   buffer.site);
    } else if (held.age == Age::before_update && held.live_in) {
      findings.add("stale weights",
                   fmt::format("{} begin a step as a copy of parameters, and {} made it before they were updated",
                               bytes(), step.describe(held.writer)),
                   step.op(held.writer).site);
    }
  }
}

}  // namespace prun::verify
