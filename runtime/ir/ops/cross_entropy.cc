// cross_entropy: scale·Σ over rows of share·(log-sum-exp − logit of the target). The derivative is
// (softmax − one-hot)·share·scale, recomputed from the retained log-sum-exp. Without the optional tensor of shares,
// each row's share is 1. Label smoothing replaces the target's logit by its mean with the row's mean logit, and the
// one-hot likewise.
//
// For logits split along the vocabulary it becomes three ops with all-reduces in between: each row's maximum (max), its
// sum of exponentials and its target's logit (sums), and the loss (finish). Only the last has a derivative, because it
// differentiates the logits itself.
//
// cross_entropy_and_grad fuses the loss and its derivative (compile/fuse_loss.cc). It computes the same values while a
// row is in the cache.
//
// Like all losses, they are differentiated with seed 1, so that nothing may be computed from them.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

void require_logits(std::string_view op, const TensorType& logits) {
  require_float(op, "the logit tensor", logits);
  require_rank_at_least(op, "the logit tensor", logits, 1);
}

void require_targets(std::string_view op, const TensorType& logits, const TensorType& targets) {
  require_dtype(op, "the target tensor", targets, Dtype::i32);
  if (element_count(targets.shape) != row_count(logits))
    throw plan_error(fmt::format("{}: the logits {} have {} rows, the targets {} have {} elements", op,
                                 shape_text(logits.shape), row_count(logits), shape_text(targets.shape),
                                 element_count(targets.shape)));
}

// Checks a tensor of `parts` statistics per row of the logits.
void require_statistics(std::string_view op, std::string_view what, const TensorType& type, const TensorType& logits,
                        int64_t parts) {
  require_dtype(op, what, type, wide(logits.dtype));
  if (element_count(type.shape) != parts * row_count(logits))
    throw plan_error(fmt::format("{}: the logits {} have {} rows, {} is {}", op, shape_text(logits.shape),
                                 row_count(logits), what, shape_text(type.shape)));
}

// Checks the shares of input `at`, which may be absent.
void require_shares(std::string_view op, const Types& inputs, size_t at, const TensorType& logits) {
  if (inputs.size() > at) require_statistics(op, "the tensor of shares", inputs[at], logits, 1);
}

TensorType row_statistic(const TensorType& logits) { return {wide(logits.dtype), {row_count(logits)}}; }

Types infer_cross_entropy(const Types& inputs, const Attrs&) {
  require_inputs("cross_entropy", inputs, 2, 3);
  require_logits("cross_entropy", inputs[0]);
  require_targets("cross_entropy", inputs[0], inputs[1]);
  require_shares("cross_entropy", inputs, 2, inputs[0]);
  return {{wide(inputs[0].dtype), {}}, row_statistic(inputs[0])};
}

Types infer_max(const Types& inputs, const Attrs&) {
  require_inputs("cross_entropy_max", inputs, 1, 1);
  require_logits("cross_entropy_max", inputs[0]);
  return {row_statistic(inputs[0])};
}

Types infer_sums(const Types& inputs, const Attrs&) {
  require_inputs("cross_entropy_sums", inputs, 3, 3);
  const TensorType& logits = inputs[0];
  require_logits("cross_entropy_sums", logits);
  require_targets("cross_entropy_sums", logits, inputs[1]);
  require_statistics("cross_entropy_sums", "the tensor of maxima", inputs[2], logits, 1);
  return {{wide(logits.dtype), {2, row_count(logits)}}};
}

Types infer_finish(const Types& inputs, const Attrs&) {
  require_inputs("cross_entropy_finish", inputs, 4, 5);
  const TensorType& logits = inputs[2];
  require_logits("cross_entropy_finish", logits);
  require_targets("cross_entropy_finish", logits, inputs[3]);
  require_statistics("cross_entropy_finish", "the tensor of sums", inputs[0], logits, 2);
  require_statistics("cross_entropy_finish", "the tensor of maxima", inputs[1], logits, 1);
  require_shares("cross_entropy_finish", inputs, 4, logits);
  return {{wide(logits.dtype), {}}, row_statistic(logits)};
}

// `first`: index of the logits among the inputs; the targets follow them, and the shares may follow those.
void derive_logits(GradientBuilder& builder, const NodeView& node, std::string_view op, size_t first) {
  require_end_of_model(op, builder, node);
  const ValueId logits = node.inputs[first];
  if (!builder.wants(logits)) return;
  std::vector<ValueId> inputs = {logits, node.inputs[first + 1], node.outputs[1]};
  if (node.inputs.size() > first + 2) inputs.push_back(node.inputs[first + 2]);
  std::vector<ValueId> grad = builder.emit(cross_entropy_grad, std::move(inputs), {builder.type(logits)}, node.attrs);
  builder.contribute(logits, grad[0]);
}
void derive_cross_entropy(GradientBuilder& builder, const NodeView& node) {
  derive_logits(builder, node, "cross_entropy", 0);
}
void derive_finish(GradientBuilder& builder, const NodeView& node) {
  derive_logits(builder, node, "cross_entropy_finish", 2);
}

// The logits are inputs for the derivative only; this op does not read them.
Cost cost_finish(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_of(4 * count(inputs[1]), {inputs[0], inputs[1]}, outputs);
}

Cost cost_both(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_of(7 * count(inputs[0]), inputs, outputs);
}

}  // namespace

const OpDef cross_entropy = {.name = "cross_entropy",
                             .distribution = Distribution::own,
                             .side_first = 1,
                             .loss = Loss::loss,
                             .counts_rows = true,
                             .infer = infer_cross_entropy,
                             .derive = derive_cross_entropy,
                             .cost = per_input<3>};
const OpDef cross_entropy_grad = {.name = "cross_entropy_grad",
                                  .role = OpRole::derivative,
                                  .loss = Loss::gradient,
                                  .counts_rows = true,
                                  .shapes = "logits [..,V], targets #R, lse #R, shares? #R -> dlogits as logits",
                                  .cost = per_output<4>};
const OpDef cross_entropy_and_grad = {
    .name = "cross_entropy_and_grad",
    .role = OpRole::derivative,
    .side_first = 1,
    .side_end = 2,
    .loss = Loss::inner,
    .counts_rows = true,
    .shapes = "logits [..,V], targets #R, shares? #R -> loss #1, lse #R, dlogits as logits",
    .cost = cost_both};
const OpDef cross_entropy_max = {
    .name = "cross_entropy_max", .distribution = Distribution::whole, .infer = infer_max, .cost = per_input<1>};
const OpDef cross_entropy_sums = {
    .name = "cross_entropy_sums", .distribution = Distribution::whole, .infer = infer_sums, .cost = per_input<2>};
const OpDef cross_entropy_finish = {.name = "cross_entropy_finish",
                                    .distribution = Distribution::whole,
                                    .side_first = 1,
                                    .loss = Loss::inner,
                                    .counted = 2,
                                    .counts_rows = true,
                                    .infer = infer_finish,
                                    .derive = derive_finish,
                                    .cost = cost_finish};

}  // namespace prun::ops
