// layernorm over the last dim: y = (x − mean)·rstd·gamma + beta. Mean and rstd are retained for the derivative.
// Ba, Kiros, Hinton: Layer Normalization, 2016.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_layernorm(const Types& inputs, const Attrs&) {
  require_inputs("layernorm", inputs, 3, 3);
  const TensorType& x = inputs[0];
  require_float("layernorm", "the input", x);
  require_rank_at_least("layernorm", "the input", x, 1);
  for (size_t i : {1, 2}) {
    const char* what = i == 1 ? "gamma" : "beta";
    require_same_dtype("layernorm", "the input", x, what, inputs[i]);
    require_rank("layernorm", what, inputs[i], 1);
    if (inputs[i].shape[0] != last_dim(x))
      throw plan_error(fmt::format("layernorm: the input's last dim is {}, {} has {} elements", last_dim(x), what,
                                   inputs[i].shape[0]));
  }
  TensorType statistic{wide(x.dtype), {row_count(x)}};
  return {x, statistic, statistic};
}

void derive_layernorm(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0], gamma = node.inputs[1], beta = node.inputs[2];
  if (!builder.wants(x) && !builder.wants(gamma) && !builder.wants(beta)) return;
  std::vector<ValueId> grads =
      builder.emit(layernorm_grad, {x, builder.gradient(node.outputs[0]), gamma, node.outputs[1], node.outputs[2]},
                   {builder.type(x), wide_like(builder.type(gamma)), wide_like(builder.type(beta))}, {});
  for (size_t i : {0, 1, 2})
    if (builder.wants(node.inputs[i])) builder.contribute(node.inputs[i], grads[i]);
}

}  // namespace

const OpDef layernorm = {.name = "layernorm",
                         .distribution = Distribution::by_rows,
                         .side_first = 1,
                         .infer = infer_layernorm,
                         .derive = derive_layernorm,
                         .cost = per_output<8>};
const OpDef layernorm_grad = {
    .name = "layernorm_grad",
    .role = OpRole::derivative,
    .shapes = "x [..,N], dy as x, gamma [N], mean #R, rstd #R -> dx as x, dgamma [N], dbeta [N]",
    .cost = per_output<16>};
const OpDef add_layernorm = {.name = "add_layernorm",
                             .side_first = 1,
                             .shapes = "a [..,N], b as a, gamma [N], beta [N] -> y as a, sum as a, mean #R, rstd #R",
                             .cost = per_output<9>};  // compile/fuse.cc creates these two
const OpDef layernorm_grad_add = {
    .name = "layernorm_grad_add",
    .role = OpRole::derivative,
    .shapes = "x [..,N], dy as x, gamma [N], mean #R, rstd #R, other as x -> dx as x, dgamma [N], dbeta [N]",
    .cost = per_output<17>};

}  // namespace prun::ops
