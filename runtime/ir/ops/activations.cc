// gelu and relu. gelu's derivative needs its input, relu's only its output (which the next op keeps anyway).
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_gelu(const Types& inputs, const Attrs& attrs) {
  require_inputs("gelu", inputs, 1, 1);
  require_float("gelu", "the input", inputs[0]);
  std::string form = attrs.text("approximate", "tanh");
  if (form != "tanh" && form != "none")
    throw plan_error(fmt::format("gelu: approximate is '{}', should be 'tanh' or 'none'", form));
  return {inputs[0]};
}

void derive_gelu(GradientBuilder& builder, const NodeView& node) {
  int x = node.inputs[0];
  if (!builder.wants(x)) return;
  int dy = builder.gradient(node.outputs[0]);
  builder.contribute(x, builder.emit("gelu_dx", {x, dy}, {builder.type(x)}, node.attrs)[0]);
}

Types infer_relu(const Types& inputs, const Attrs&) {
  require_inputs("relu", inputs, 1, 1);
  require_float("relu", "the input", inputs[0]);
  return {inputs[0]};
}

void derive_relu(GradientBuilder& builder, const NodeView& node) {
  int x = node.inputs[0], y = node.outputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(x, builder.emit("relu_dx", {y, builder.gradient(y)}, {builder.type(x)}, {})[0]);
}

const OpDef kOps[] = {
    {.name = "gelu", .infer = infer_gelu, .derive = derive_gelu, .cost = per_output<10>},
    {.name = "gelu_dx", .cost = per_output<20>},
    {.name = "relu", .infer = infer_relu, .derive = derive_relu, .cost = per_output<1>},
    {.name = "relu_dx", .cost = per_output<1>},
};

}  // namespace

std::span<const OpDef> activations() { return kOps; }

}  // namespace prun::ops
