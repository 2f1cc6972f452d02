// rmsnorm over the last dim: y = x·rrms·gamma with rrms = 1 / √(mean x² + eps), which is retained for the derivative.
// Zhang, Sennrich: Root Mean Square Layer Normalization, 2019.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_rmsnorm(const Types& inputs, const Attrs&) {
  require_inputs("rmsnorm", inputs, 2, 2);
  const TensorType &x = inputs[0], &gamma = inputs[1];
  require_float("rmsnorm", "the input", x);
  require_rank_at_least("rmsnorm", "the input", x, 1);
  require_same_dtype("rmsnorm", "the input", x, "gamma", gamma);
  require_rank("rmsnorm", "gamma", gamma, 1);
  if (gamma.shape[0] != last_dim(x))
    throw plan_error(
        fmt::format("rmsnorm: the input's last dim is {}, gamma has {} elements", last_dim(x), gamma.shape[0]));
  return {x, {wide(x.dtype), {row_count(x)}}};
}

void derive_rmsnorm(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0], gamma = node.inputs[1];
  if (!builder.wants(x) && !builder.wants(gamma)) return;
  std::vector<ValueId> grads =
      builder.emit(rmsnorm_grad, {x, builder.gradient(node.outputs[0]), gamma, node.outputs[1]},
                   {builder.type(x), wide_like(builder.type(gamma))}, {});
  for (size_t i : {0, 1})
    if (builder.wants(node.inputs[i])) builder.contribute(node.inputs[i], grads[i]);
}

}  // namespace

const OpDef rmsnorm = {.name = "rmsnorm",
                       .distribution = Distribution::by_rows,
                       .side_first = 1,
                       .infer = infer_rmsnorm,
                       .derive = derive_rmsnorm,
                       .cost = per_output<4>};
const OpDef rmsnorm_grad = {.name = "rmsnorm_grad",
                            .role = OpRole::derivative,
                            .shapes = "x [..,N], dy as x, gamma [N], rrms #R -> dx as x, dgamma [N]",
                            .cost = per_output<10>};
const OpDef add_rmsnorm = {.name = "add_rmsnorm",
                           .side_first = 1,
                           .shapes = "a [..,N], b as a, gamma [N] -> y as a, sum as a, rrms #R",
                           .cost = per_output<5>};  // compile/fuse.cc creates these two
const OpDef rmsnorm_grad_add = {.name = "rmsnorm_grad_add",
                                .role = OpRole::derivative,
                                .shapes = "x [..,N], dy as x, gamma [N], rrms #R, other as x -> dx as x, dgamma [N]",
                                .cost = per_output<11>};

}  // namespace prun::ops
