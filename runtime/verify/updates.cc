// Parameters over a step: they are read first, then updated once, and copies of them are refreshed afterwards.
//
// Surprising fact: a copy may also be refreshed at the begin of the next step, before its first reader; then it is not
// stale at the end of this step.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "ir/state.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

void update(OpContext& context) {
  for (size_t w = 0; w < context.writes.size(); w++) {
    const auto at = std::find(context.op.reads.begin(), context.op.reads.end(), context.op.writes[w]);
    if (at == context.op.reads.end()) continue;
    for (const Segment& segment : context.reads[at - context.op.reads.begin()]) {
      const OpRef writer = segment.state.writer;
      if (writer.stream < 0 || !is_optimizer(context.body.op(writer))) continue;
      context.report("updated twice",
                     fmt::format("updates bytes {}..{} of buffer '{}' for the second time in a step", segment.begin,
                                 segment.end, context.body.buffer_name(context.write_tensors[w]->buffer)),
                     segment.state);
      break;
    }
  }
  if (context.op.def->optimizer->prepares) return;
  for (const size_t w : {size_t{0}, updated_by(context.op)}) {  // the parameters and their cast copy
    if (w > 0 && !context.op.def->optimizer->casts) continue;
    for (Segment& segment : context.writes[w]) segment.state.params = ParamVersion::after_update;
  }
}

// Returns whether the clip coefficient comes from an op that detects a non-finite norm; check_norm verifies which norm.
bool is_told_to_skip(const OpContext& context) {
  const Segments& clip = context.reads.back();
  return std::all_of(clip.begin(), clip.end(), [&](const Segment& segment) {
    const OpRef writer = segment.state.writer;
    return writer.stream >= 0 && context.body.op(writer).is(ops::clip_coefficient) &&
           context.body.op(writer).attrs.integer("skip") != 0;
  });
}

// Requires that the norm counts every element of a clipped gradient exactly once. Twins of tied weights are counted in
// the norm of another rank.
void check_norm(const OpContext& context) {
  const bool clips = is_factored(context.op) ? context.op.attrs.integer("clipped") != 0
                                             : context.op.reads.size() > updated_by(context.op) + 1;
  if (context.body.program->schedule.most_skips > 0 && !(clips && is_told_to_skip(context)))
    context.report("norm of gradients", "updates parameters also where gradients are not finite", ValueState());
  if (!clips || applies_directions(context.op)) return;
  const Segments& grads = context.reads[0];
  const bool any = std::any_of(grads.begin(), grads.end(), [](const Segment& s) { return s.state.norms > 0; });
  for (const Segment& segment : grads) {
    const int norms = segment.state.norms;
    if (norms == 1 || (norms == 0 && !any && context.body.many_classes)) continue;
    context.report("norm of gradients",
                   fmt::format("clips bytes {}..{} of buffer '{}' by a norm that counts them {}", segment.begin,
                               segment.end, context.body.buffer_name(context.read_tensors[0]->buffer),
                               norms == 0 ? "not at all" : fmt::format("{} times", norms)),
                   segment.state);
    return;
  }
}

// Bytes of a buffer in memory that hold a buffer of the model.
struct ModelBuffer {
  int64_t begin, end;
  const StateTensor* state;
  bool meets(int64_t from, int64_t to) const { return begin < to && from < end; }
};

std::vector<ModelBuffer> model_buffers(const Program& program, BufferId id) {
  std::vector<ModelBuffer> found;
  for (const StateTensor& state : program.state) {
    const Tensor& flat = program.tensors[state.tensor];
    if (flat.buffer != id) continue;
    const int64_t size = dtype_bytes(flat.dtype), begin = flat.byte_offset + state.begin * size;
    found.push_back({begin, begin + local_count(program, state) * size, &state});
  }
  return found;
}

// A step writes only buffers that the model updates, by the copy that is its update; backward reads copies of them.
void check_model_buffers(const OpContext& context) {
  const Program& program = *context.body.program;
  const auto check = [&](const Tensor& tensor, bool writes) {
    if (program.buffers[tensor.buffer].role != Role::buffer) return;
    for (const ModelBuffer& one : model_buffers(program, tensor.buffer)) {
      if (!one.meets(tensor.byte_offset, tensor.byte_offset + tensor.bytes())) continue;
      const bool whole = tensor.byte_offset == one.begin && tensor.byte_offset + tensor.bytes() == one.end;
      const bool is_update = context.op.is(ops::copy) && context.op.phase == Phase::forward && whole;
      if (writes && !(one.state->updated && is_update))
        context.report("frozen weights",
                       fmt::format("writes '{}', a buffer that {}", one.state->name,
                                   one.state->updated ? "only its update writes" : "nothing updates"),
                       ValueState());
      if (!writes && one.state->updated && context.op.phase == Phase::backward)
        context.report("read after update",
                       fmt::format("reads '{}', a buffer that forward has updated", one.state->name), ValueState());
    }
  };
  for (const Tensor* tensor : context.write_tensors) check(*tensor, true);
  for (const Tensor* tensor : context.read_tensors) check(*tensor, false);
}

void check_buffers_at_end(const BodyView& step, BufferId id, const Segments& end, Findings& findings) {
  for (const ModelBuffer& one : model_buffers(*step.program, id))
    for (const Segment& segment : end)
      if (one.state->updated && one.meets(segment.begin, segment.end) && segment.state.writer.stream < 0) {
        findings.add("never updated",
                     fmt::format("{}the buffer '{}' has an update, and nothing in a step writes it", step.where(),
                                 one.state->name),
                     step.program->buffers[id].site);
        break;
      }
}

void check_frozen(const OpContext& context) {
  for (const Tensor* tensor : context.write_tensors)
    if (context.body.program->buffers[tensor->buffer].role == Role::frozen)
      return context.report("frozen weights",
                            fmt::format("writes '{}', weights that the plan has frozen", tensor->name), ValueState());
}

// Between steps nothing is updated, and a refreshed copy must be a copy of parameters.
void check_copies_at_end(const BodyView& body, BufferId id, const Segments& end, Findings& findings) {
  if (body.program->buffers[id].role != Role::gathered) return;
  for (const Segment& segment : end) {
    const ValueState& state = segment.state;
    if (state.writer.stream < 0 || state.params == ParamVersion::before_update || state.params == ParamVersion::frozen)
      continue;
    findings.add("stale weights",
                 fmt::format("{}bytes {}..{} of buffer '{}' begin a step as a copy of parameters, and {} wrote "
                             "something else there",
                             body.where(), segment.begin, segment.end, body.buffer_name(id),
                             body.describe(segment.state.writer)),
                 body.op(segment.state.writer).site);
  }
}

}  // namespace

void follow_updates(OpContext& context) {
  const Phase phase = context.op.phase;
  check_frozen(context);
  if (context.body.is_step) check_model_buffers(context);
  if (is_optimizer(context.op)) {
    check_norm(context);
    if (!context.op.def->optimizer->prepares) check_update_settings(context);
    if (applies_directions(context.op)) check_matrices(context);
    if (is_factored(context.op) && !context.op.def->optimizer->prepares) check_factors(context);
    return update(context);
  }
  ParamVersion oldest = ParamVersion::none;
  for (size_t r = 0; r < context.reads.size(); r++) {
    for (const Segment& segment : context.reads[r]) {
      const ValueState& state = segment.state;
      if (state.params == ParamVersion::none) continue;
      if (oldest == ParamVersion::none || state.params < oldest) oldest = state.params;
      if (state.params != ParamVersion::after_update || (phase != Phase::forward && phase != Phase::backward)) continue;
      context.report("read after update",
                     fmt::format("reads bytes {}..{} of buffer '{}', parameters that the step has already updated",
                                 segment.begin, segment.end, context.body.buffer_name(context.read_tensors[r]->buffer)),
                     state);
      return;
    }
  }
  if (!context.op.def->moves) return;
  for (Segments& write : context.writes)
    for (Segment& segment : write) segment.state.params = oldest;
}

void check_update_at_end(const BodyView& step, BufferId id, const Segments& end, Findings& findings) {
  if (!step.is_step) return check_copies_at_end(step, id, end, findings);
  const Buffer& buffer = step.program->buffers[id];
  if (buffer.role == Role::frozen) return;
  if (buffer.role == Role::buffer) return check_buffers_at_end(step, id, end, findings);
  for (const Segment& segment : end) {
    const ValueState& state = segment.state;
    const auto bytes = [&] {
      return fmt::format("{}bytes {}..{} of buffer '{}'", step.where(), segment.begin, segment.end, buffer.name);
    };
    if (state.writer.stream < 0) {
      findings.add("never updated",
                   fmt::format("{} are {}, and nothing in a step writes them", bytes(),
                               buffer.role == Role::optimizer ? "optimizer state" : "parameters"),
                   buffer.site);
    } else if (state.params == ParamVersion::before_update && state.live_in) {
      findings.add("stale weights",
                   fmt::format("{} begin a step as a copy of parameters, and {} made it before they were updated",
                               bytes(), step.describe(state.writer)),
                   step.op(state.writer).site);
    }
  }
}

}  // namespace prun::verify
