// linear: y = act(x·w + b), a GEMM; its derivative is two more of them.
//
// relu's derivative needs only the output (y > 0 exactly where its input was). gelu's needs the input, so a linear with
// a fused gelu has no derivative and is created only where no gradient flows. linear_gelu retains gelu's input.
// compile/fuse.cc creates it and linear_dx_gelu, its counterpart in backward, after autodiff, so that they have no
// derivatives.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

bool transposed(const Attrs& attrs) { return attrs.integer("transpose") != 0; }

Types infer_linear(const Types& inputs, const Attrs& attrs) {
  require_inputs("linear", inputs, 2, 3);
  const TensorType &x = inputs[0], &w = inputs[1];
  require_float("linear", "the input", x);
  require_rank_at_least("linear", "the input", x, 1);
  require_rank("linear", "the weight", w, 2);
  require_same_dtype("linear", "the input", x, "the weight", w);
  bool t = transposed(attrs);
  int64_t k = w.shape[t ? 1 : 0], n = w.shape[t ? 0 : 1];
  if (last_dim(x) != k)
    throw plan_error(fmt::format("linear: the input's last dim is {}, the weight has {} {}", last_dim(x), k,
                                 t ? "columns (it is transposed)" : "rows"));
  if (inputs.size() == 3) {
    require_same_dtype("linear", "the weight", w, "the bias", inputs[2]);
    require_rank("linear", "the bias", inputs[2], 1);
    if (inputs[2].shape[0] != n)
      throw plan_error(fmt::format("linear: the bias has {} elements, the weight has {} {}", inputs[2].shape[0], n,
                                   t ? "rows (it is transposed)" : "columns"));
  }
  std::string act = attrs.text("act");
  if (!act.empty() && act != "relu" && act != "gelu")
    throw plan_error(fmt::format("linear: act is '{}', should be 'relu' or 'gelu'", act));
  Shape y = x.shape;
  y.back() = n;
  return {{x.dtype, y}};
}

void derive_linear(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0], w = node.inputs[1], y = node.outputs[0];
  ValueId dy = builder.gradient(y);
  std::string act = node.attrs.text("act");
  PRUN_CHECK(act.empty() || act == "relu", "linear with a fused " + act + " has no derivative");
  if (act == "relu") dy = builder.emit(relu_dx, {y, dy}, {builder.type(y)}, {})[0];
  Attrs attrs;
  if (transposed(node.attrs)) attrs.set("transpose", int64_t{1});
  if (node.attrs.has("columns")) attrs.set("columns", node.attrs.number("columns"));
  bool bias = node.inputs.size() == 3 && builder.wants(node.inputs[2]);
  auto gradient_of_x = [&] {
    if (builder.wants(x)) builder.contribute(x, builder.emit(linear_dx, {dy, w}, {builder.type(x)}, attrs)[0]);
  };
  auto gradient_of_weights = [&] {
    if (!builder.wants(w) && !bias) return;
    Types types = {wide_like(builder.type(w))};
    if (bias) types.push_back(wide_like(builder.type(node.inputs[2])));
    std::vector<ValueId> dw = builder.emit(linear_dw, {x, dy}, types, attrs);
    if (builder.wants(w)) builder.contribute(w, dw[0]);
    if (bias) builder.contribute(node.inputs[2], dw[1]);
  };
  // Computes dw first, so that its reduction overlaps with dx, unless dx has a reduction of its own, whose result other
  // ops need sooner.
  if (node.attrs.integer("dx_first") != 0)
    gradient_of_x(), gradient_of_weights();
  else
    gradient_of_weights(), gradient_of_x();
}

// 2·rows·K·N: x has rows·K elements, y rows·N.
double product_flops(const TensorType& x, const TensorType& y) {
  return 2 * count(x) * static_cast<double>(last_dim(y));
}

// Padding is computed, but no model's formula contains it.
Cost without_padding(Cost cost, const TensorType& y, const Attrs& attrs) {
  const double columns = static_cast<double>(last_dim(y));
  cost.model *= attrs.number("columns", columns) / columns;
  return cost;
}

Cost cost_linear(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return without_padding(product_cost(product_flops(inputs[0], outputs[0]), inputs, outputs), outputs[0], attrs);
}
Cost cost_dx(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return without_padding(product_cost(product_flops(outputs[0], inputs[0]), inputs, outputs), inputs[0], attrs);
}
Cost cost_dw(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  return without_padding(product_cost(product_flops(inputs[0], inputs[1]), inputs, outputs), inputs[1], attrs);
}

// Counts as much as the unfused ops: the GEMM, plus 10 and 20 FLOPs per element for gelu and its derivative.
Cost cost_gelu(const Types& inputs, const Types& outputs, const Attrs&) {
  Cost cost = product_cost(product_flops(inputs[0], outputs[0]), inputs, outputs);
  cost.flops += 10 * count(outputs[0]);
  return cost;
}
Cost cost_dx_gelu(const Types& inputs, const Types& outputs, const Attrs&) {
  Cost cost = product_cost(product_flops(outputs[0], inputs[0]), inputs, outputs);
  cost.flops += 20 * count(outputs[0]);
  return cost;
}

}  // namespace

const OpDef linear = {.name = "linear",
                      .distribution = Distribution::own,
                      .infer = infer_linear,
                      .derive = derive_linear,
                      .cost = cost_linear};
const OpDef linear_dx = {
    .name = "linear_dx", .role = OpRole::derivative, .shapes = "dy [..,N], w [K,N]t -> dx [..,K]", .cost = cost_dx};
const OpDef linear_dw = {.name = "linear_dw",
                         .role = OpRole::derivative,
                         .shapes = "x [..,K], dy [..,N] -> dw [K,N]t, db? [N]",
                         .cost = cost_dw,
                         .accumulating = &linear_dw_add};
const OpDef linear_dw_add = {.name = "linear_dw_add",
                             .role = OpRole::derivative,
                             .shapes = "x [..,K], dy [..,N], sum [K,N]t, bias_sum? [N] -> dw [K,N]t, db? [N]",
                             .cost = cost_dw};
const OpDef linear_gelu = {.name = "linear_gelu",
                           .side_first = 1,
                           .shapes = "x [..,K], w [K,N]t, b? [N] -> y [..,N], pre as y",
                           .cost = cost_gelu};
const OpDef linear_dx_gelu = {.name = "linear_dx_gelu",
                              .role = OpRole::derivative,
                              .shapes = "dy [..,N], w [K,N]t, pre [..,K] -> dx as pre",
                              .cost = cost_dx_gelu};

}  // namespace prun::ops
