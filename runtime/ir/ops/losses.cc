// mse, bce, mean_square and mean: scaled sums that end a model. The place pass sets `scale`, so that the average of the
// gradients over data ranks is the gradient of the global mean, times the attribute `coefficient`. squares is the sum
// that an L2 loss takes the mean of, a parameter's.
//
// Like all losses, they are differentiated with seed 1, so that nothing may be computed from them.
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types loss_type(const TensorType& y) { return {{wide(y.dtype), {}}}; }

Types infer_mse(const Types& inputs, const Attrs&) {
  require_inputs("mse", inputs, 2, 2);
  require_float("mse", "the prediction", inputs[0]);
  require_same_dtype("mse", "the prediction", inputs[0], "the target", inputs[1]);
  require_same_shape("mse", "the prediction", inputs[0], "the target", inputs[1]);
  return loss_type(inputs[0]);
}

void derive_mse(GradientBuilder& builder, const NodeView& node) {
  require_end_of_model("mse", builder, node);
  ValueId y = node.inputs[0], target = node.inputs[1];
  if (!builder.wants(y) && !builder.wants(target)) return;
  ValueId dy = builder.emit(mse_grad, {y, target}, {builder.type(y)}, node.attrs)[0];
  if (builder.wants(y)) builder.contribute(y, dy);
  if (builder.wants(target)) {
    Attrs minus;
    minus.set("factor", -1.0);
    builder.contribute(target, builder.emit(scale, {dy}, {builder.type(target)}, minus)[0]);
  }
}

Types infer_bce(const Types& inputs, const Attrs&) {
  require_inputs("bce", inputs, 2, 2);
  require_float("bce", "the logit tensor", inputs[0]);
  require_same_dtype("bce", "the logits", inputs[0], "the target", inputs[1]);
  require_same_shape("bce", "the logits", inputs[0], "the target", inputs[1]);
  return loss_type(inputs[0]);
}

void derive_bce(GradientBuilder& builder, const NodeView& node) {
  require_end_of_model("bce", builder, node);
  const ValueId x = node.inputs[0], target = node.inputs[1];
  if (builder.wants(x)) builder.contribute(x, builder.emit(bce_grad, {x, target}, {builder.type(x)}, node.attrs)[0]);
}

Types infer_squares(const Types& inputs, const Attrs&) {
  require_inputs("squares", inputs, 1, 1);
  require_float("squares", "the input", inputs[0]);
  return {{wide(inputs[0].dtype), {1}}};
}

void derive_squares(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  const ValueId ds = builder.gradient(node.outputs[0]);
  builder.contribute(x, builder.emit(squares_grad, {x, ds}, {wide_like(builder.type(x))}, {})[0]);
}

Types infer_mean_square(const Types& inputs, const Attrs&) {
  require_inputs("mean_square", inputs, 1, 1);
  require_float("mean_square", "the input", inputs[0]);
  return loss_type(inputs[0]);
}

Types infer_mean(const Types& inputs, const Attrs&) {
  require_inputs("mean", inputs, 1, 1);
  require_float("mean", "the input", inputs[0]);
  return loss_type(inputs[0]);
}

void derive_sum(GradientBuilder& builder, const NodeView& node, const OpDef& loss, const OpDef& grad) {
  require_end_of_model(loss.name, builder, node);
  ValueId y = node.inputs[0];
  if (builder.wants(y)) builder.contribute(y, builder.emit(grad, {y}, {builder.type(y)}, node.attrs)[0]);
}
void derive_mean_square(GradientBuilder& builder, const NodeView& node) {
  derive_sum(builder, node, mean_square, mean_square_grad);
}
void derive_mean(GradientBuilder& builder, const NodeView& node) { derive_sum(builder, node, mean, mean_grad); }

}  // namespace

const OpDef mse = {.name = "mse",
                   .distribution = Distribution::whole,
                   .loss = Loss::loss,
                   .infer = infer_mse,
                   .derive = derive_mse,
                   .cost = per_input<2>};
const OpDef mse_grad = {.name = "mse_grad",
                        .role = OpRole::derivative,
                        .loss = Loss::gradient,
                        .shapes = "y, target as y -> dy as y",
                        .cost = per_output<2>};
const OpDef bce = {.name = "bce",
                   .distribution = Distribution::whole,
                   .loss = Loss::loss,
                   .infer = infer_bce,
                   .derive = derive_bce,
                   .cost = per_input<6>};
const OpDef bce_grad = {.name = "bce_grad",
                        .role = OpRole::derivative,
                        .loss = Loss::gradient,
                        .shapes = "x, target as x -> dx as x",
                        .cost = per_output<6>};
const OpDef squares = {.name = "squares",
                       .distribution = Distribution::own,
                       .infer = infer_squares,
                       .derive = derive_squares,
                       .cost = per_input<2>};
const OpDef squares_grad = {
    .name = "squares_grad", .role = OpRole::derivative, .shapes = "x, ds #1 -> dx as x", .cost = per_output<1>};
const OpDef mean_square = {.name = "mean_square",
                           .distribution = Distribution::whole,
                           .loss = Loss::loss,
                           .infer = infer_mean_square,
                           .derive = derive_mean_square,
                           .cost = per_input<2>};
const OpDef mean_square_grad = {.name = "mean_square_grad",
                                .role = OpRole::derivative,
                                .loss = Loss::gradient,
                                .shapes = "y -> dy as y",
                                .cost = per_output<1>};
const OpDef mean = {.name = "mean",
                    .distribution = Distribution::whole,
                    .loss = Loss::loss,
                    .infer = infer_mean,
                    .derive = derive_mean,
                    .cost = per_input<1>};
const OpDef mean_grad = {
    .name = "mean_grad", .role = OpRole::derivative, .loss = Loss::gradient, .shapes = "y -> dy as y"};

}  // namespace prun::ops
