// bias: y = x + b over the last dim, for a linear whose result is reduced over ranks before its bias is added.
//
// The gradient of x is dy itself, so the derivative computes only the gradient of b, the sum of dy over rows.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_bias(const Types& inputs, const Attrs&) {
  require_inputs("bias", inputs, 2, 2);
  const TensorType &x = inputs[0], &b = inputs[1];
  require_float("bias", "the input", x);
  require_rank_at_least("bias", "the input", x, 1);
  require_same_dtype("bias", "the input", x, "the bias", b);
  require_rank("bias", "the bias", b, 1);
  if (b.shape[0] != last_dim(x))
    throw plan_error(
        fmt::format("bias: the input's last dim is {}, the bias has {} elements", last_dim(x), b.shape[0]));
  return {x};
}

void derive_bias(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0], b = node.inputs[1], dy = builder.gradient(node.outputs[0]);
  if (builder.wants(b)) builder.contribute(b, builder.emit(bias_grad, {dy}, {wide_like(builder.type(b))}, {})[0]);
  if (builder.wants(x)) builder.contribute(x, dy);
}

}  // namespace

const OpDef bias = {.name = "bias",
                    .distribution = Distribution::whole,
                    .infer = infer_bias,
                    .derive = derive_bias,
                    .cost = per_output<1>};
const OpDef bias_grad = {.name = "bias_grad",
                         .role = OpRole::derivative,
                         .shapes = "dy [..,N] -> db [N]",
                         .cost = per_input<1>,
                         .accumulating = &bias_grad_add};
const OpDef bias_grad_add = {.name = "bias_grad_add",
                             .role = OpRole::derivative,
                             .shapes = "dy [..,N], sum [N] -> db [N]",
                             .cost = per_input<1>};

}  // namespace prun::ops
