// Lowers nodes of the model graph to ops on the compute stream, or on the stream of the axis that they communicate
// over.
#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "compile/ring_attention.h"
#include "compile/step_builder.h"
#include "ir/ops.h"

namespace prun {

void StepBuilder::lower(const Node& node, const ScheduleStep& step) {
  // An alias of an existing value.
  if (node.op == &ops::enter || (evaluates_ && node.op == &ops::dropout)) {
    emitter_.tensor_of(node.outputs[0], step.microbatch) = emitter_.input_of(node.inputs[0], step.microbatch);
    return;
  }
  if (node.op == &ops::by_phase) return lower_by_phase(node, step);
  if (node.op == &ops::cross_entropy_and_grad &&
      (evaluates_ || (step.phase == Phase::forward && index_.recomputes(step))))
    return lower(without_gradient(node), step);
  if (node.op == &ops::ring_attention || node.op == &ops::ring_attention_grad) return lower_ring(node, step);
  const bool adds = accumulates(node, step);
  Op op = emitter_.op(adds ? *node.op->accumulating : *node.op, {}, {}, step, node.site,
                      state_.graph.calls[node.call].unit);
  const OpAttrs& attrs = attrs_of(node, op.communicates());
  op.attrs = attrs.of_op;
  if (op.is(ops::dropout)) {  // the mask depends on the sample's index in the global batch
    const int64_t samples = state_.graph.values[node.inputs[0]].type.shape.front();
    int64_t ranks = 1;
    for (const std::string& axis : state_.plan.batch_axes) ranks *= state_.plan.mesh.size(axis);
    op.attrs.set("rows_axis", state_.data_axes);
    op.attrs.set("first", samples * ranks * step.microbatch);
    op.attrs.set("samples", samples);
  }
  op.reads.reserve(node.inputs.size() + (adds ? node.outputs.size() : 0));
  op.writes.reserve(node.outputs.size());
  for (ValueId input : node.inputs) op.reads.push_back(operand(input, node, step));
  if (node.op == &ops::update) {  // the buffer's memory gets the value
    op.def = &ops::copy;
    op.writes = {op.reads[0]};
    op.reads = {op.reads[1]};
    return emitter_.compute(std::move(op));
  }
  std::vector<std::pair<TensorId, TensorId>> sums;  // (accumulator, addend): additions after the op
  for (ValueId output : node.outputs) {
    const TensorId tensor =
        adds ? gradients_.tensor(*gradients_.target_of(output), step) : output_of(node, output, op, step, sums);
    emitter_.tensor_of(output, step.microbatch) = tensor;
    op.writes.push_back(tensor);
    if (adds) op.reads.push_back(tensor);
  }
  if (op.communicates()) {
    op.axis = attrs.axis;
    emitter_.communicate(attrs.axis, std::move(op));
  } else {
    emitter_.compute(std::move(op));
  }
  for (auto [into, what] : sums) {
    if (is_result(into) && begun_.insert(into).second)
      emitter_.compute(emitter_.op(ops::copy, {what}, {into}, step, node.site, state_.graph.calls[node.call].unit));
    else
      emitter_.add_in_place(into, what, step, node.site);
  }
}

// Ops of all microbatches share their attributes.
const StepBuilder::OpAttrs& StepBuilder::attrs_of(const Node& node, bool communicates) {
  const auto [found, fresh] = attrs_.try_emplace({&node.attrs.values(), communicates});
  OpAttrs& made = found->second;
  if (!fresh) return made;
  made.of_node = made.of_op = node.attrs;
  made.of_op.erase("again");
  if (!communicates) return made;
  made.axis = made.of_op.text("axis");
  made.of_op.erase("axis");
  made.of_op.erase("gradient");
  return made;
}

TensorId StepBuilder::operand(ValueId input, const Node& node, const ScheduleStep& step) {
  return state_.graph.values[input].kind == ValueKind::parameter ? gathered_.parameter(input, *node.op, node.site)
                                                                 : emitter_.input_of(input, step.microbatch);
}

// The value of this body's phase; a copy of it if it is a parameter.
void StepBuilder::lower_by_phase(const Node& node, const ScheduleStep& step) {
  const ValueId chosen = node.inputs[evaluates_ ? 1 : 0], result = node.outputs[0];
  TensorId& tensor = emitter_.tensor_of(result, step.microbatch);
  const TensorId value = operand(chosen, node, step);
  if (state_.graph.values[chosen].kind != ValueKind::parameter) {
    tensor = value;
    return;
  }
  tensor = emitter_.activation(state_.graph.values[result], step.microbatch);
  emitter_.compute(emitter_.op(ops::copy, {value}, {tensor}, step, node.site, state_.graph.calls[node.call].unit));
}

bool StepBuilder::is_result(TensorId tensor) const {
  return tensor == state_.loss_tensor ||
         (!tensor.none() && std::ranges::find(state_.term_tensors, tensor) != state_.term_tensors.end());
}

// Returns the results to which a loss op's output is added.
std::vector<TensorId> StepBuilder::results_of(ValueId output) const {
  std::vector<TensorId> results;
  for (size_t i = 0; i < terms_.size(); ++i) {
    if (std::ranges::find(terms_[i].values, output) == terms_[i].values.end()) continue;
    if (i < state_.term_tensors.size() && !state_.term_tensors[i].none()) results.push_back(state_.term_tensors[i]);
    if (terms_[i].optimised) results.push_back(state_.loss_tensor);
  }
  return results;
}

// Returns whether the device has an op that adds all outputs of the node to the gradients of earlier microbatches.
bool StepBuilder::accumulates(const Node& node, const ScheduleStep& step) const {
  const OpDef* adding = node.op->accumulating;
  if (adding == nullptr) return false;
  // In rounds the op is in the graph, so the device has it.
  const bool always = node.attrs.has("round");
  if (!always && (!state_.options.fuses || !state_.options.fuses(adding->name))) return false;
  if (index_.is_first(step, index_.for_weights(node))) return false;
  return std::ranges::all_of(node.outputs, [&](ValueId output) {
    const GradientBuckets::Target* target = gradients_.target_of(output);
    return target != nullptr && state_.storage[target->unit].keeps_whole_gradient();
  });
}

namespace {

// Returns the operand that the op of a later round writes over, the sum of other rounds; 0 = none.
size_t sum_of_rounds(const Node& node, ValueId output) {
  if (!node.attrs.has("round")) return 0;
  const size_t operands = node.op == &ops::dispatch_grad                                      ? 2
                          : node.op == &ops::combine || node.op == &ops::expert_linear_dw_add ? 3
                          : node.op == &ops::combine_grad && output == node.outputs.back()    ? 4
                                                                                              : SIZE_MAX;
  return node.inputs.size() > operands ? operands : 0;
}

}  // namespace

// Returns the tensor that the node's op writes as `output`; records in `sums` an addition that follows the op.
TensorId StepBuilder::output_of(const Node& node, ValueId output, const Op& op, const ScheduleStep& step,
                                std::vector<std::pair<TensorId, TensorId>>& sums) {
  const Value& value = state_.graph.values[output];
  const auto activation = [&] { return emitter_.activation(value, step.microbatch); };
  if (const std::vector<TensorId> results = results_of(output); !results.empty() && step.phase == Phase::forward) {
    const auto fresh = std::ranges::find_if(results, [&](TensorId result) { return !begun_.contains(result); });
    const TensorId tensor = fresh == results.end() ? activation() : *fresh;
    begun_.insert(tensor);
    for (const TensorId result : results)
      if (result != tensor) sums.emplace_back(result, tensor);
    return tensor;
  }
  if (const size_t sum = sum_of_rounds(node, output); sum > 0) return op.reads[sum];
  if (const GradientBuckets::Target* target = gradients_.target_of(output)) {
    const bool kept = state_.storage[target->unit].keeps_whole_gradient();
    if (kept && !index_.is_first(step, index_.for_weights(node))) {
      const TensorId tensor = activation();
      sums.emplace_back(gradients_.tensor(*target, step), tensor);
      return tensor;
    }
    const bool last = step.call == gradients_.last_backward_of(target->unit);
    if (kept || (step.half != Half::input && last)) return gradients_.tensor(*target, step);
    const TensorId tensor = activation();  // its bucket opens with the other half, or with the unit's last call
    gradients_.keep_early(*target, tensor, step);
    return tensor;
  }
  if (op.is(ops::all_reduce)) return op.reads[0];  // in place
  if (op.attrs.integer("continues") != 0)          // writes a part of the tensor that it reads last
    return add_view(state_.program, emitter_.name_of(value.name, step.microbatch), op.reads.back(), 0,
                    value.type.shape);
  if (op.is(ops::cross_entropy_and_grad) && output == node.outputs.back())  // the gradient overwrites the logits
    return add_view(state_.program, emitter_.name_of(value.name, step.microbatch), op.reads[0], 0, value.type.shape);
  // A recomputed view of the batch would have the name of the first one, and a repeat moves views by their names.
  if (op.is(ops::reshape) && index_.aliases(node) &&
      !(index_.recomputes(step) && state_.graph.values[node.inputs[0]].kind == ValueKind::input))
    return alias_of(op.reads[0], emitter_.name_of(value.name, step.microbatch), value.type.shape);
  return activation();
}

// Aliases of one shape are one tensor, so that the verifier finds each read under the name that was written last.
TensorId StepBuilder::alias_of(TensorId x, const std::string& name, const Shape& shape) {
  const auto known = first_alias_.find(x);
  std::vector<TensorId>& aliases = aliases_[known == first_alias_.end() ? x : known->second];
  if (aliases.empty()) aliases.push_back(x);
  for (const TensorId alias : aliases)
    if (state_.program.tensors[alias].shape == shape) return alias;
  const TensorId alias = add_view(state_.program, name, x, 0, shape);
  first_alias_[alias] = aliases.front();
  aliases.push_back(alias);
  return alias;
}

// Lowers ring attention: blocks on the compute stream; keys, values and their gradients on streams of their own.
void StepBuilder::lower_ring(const Node& node, const ScheduleStep& step) {
  RingNode ring;
  ring.qkv = state_.graph.values[node.inputs[0]].type;
  ring.attrs = node.attrs;
  for (ValueId input : node.inputs) ring.reads.push_back(emitter_.input_of(input, step.microbatch));
  for (ValueId output : node.outputs)
    ring.writes.push_back(emitter_.tensor_of(output, step.microbatch) =
                              emitter_.activation(state_.graph.values[output], step.microbatch));
  const std::string axis = node.attrs.text("tokens_axis"), &name = state_.graph.values[node.outputs[0]].name;
  const auto temporary = [&](std::string_view suffix, TensorType type) {
    return emitter_.activation(emitter_.name_of(fmt::format("{}.{}", name, suffix), step.microbatch), std::move(type),
                               node.site);
  };
  const auto expand = node.op == &ops::ring_attention ? lower_ring_attention : lower_ring_attention_grad;
  std::vector<RingStep> parts = expand(ring, state_.plan.mesh.size(axis), temporary);
  // No compute op waits for a send, so that its input would remain live until the end of the body. The last receive of
  // a ring therefore waits for the previous ring's sends. This wait takes no time: the arriving tensor originates from,
  // or has passed through, the neighbor that receives from this rank, so that the neighbor has completed the previous
  // ring.
  const std::vector<OpRef> sent_before = emitter_.last("ring_send");
  size_t last_arrival = parts.size();
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].op == &ops::recv) last_arrival = i;
  for (size_t i = 0; i < parts.size(); ++i) {
    RingStep& part = parts[i];
    Op op = emitter_.op(*part.op, std::move(part.reads), std::move(part.writes), step, node.site);
    op.attrs = std::move(part.attrs);
    if (op.communicates()) {
      op.axis = axis;
      op.lane = static_cast<int>(MessageLane::ring);
    }
    std::vector<OpRef> floors;
    if (op.is(ops::recv)) floors = emitter_.last("compute");
    if (i == last_arrival) floors.insert(floors.end(), sent_before.begin(), sent_before.end());
    emitter_.append(emitter_.stream(part.stream), std::move(op), floors);
  }
}

}  // namespace prun
