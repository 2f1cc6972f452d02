// positions: y = x + the row of a position table for each token, by its position in the whole sample.
//
// A rank may hold a part of a sample's tokens: with one chunk a contiguous run, with two chunks r and 2c−1−r of 2c, so
// that causal attention costs each of the c ranks the same (device/share.h has the formula).
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_positions(const Types& inputs, const Attrs& attrs) {
  require_inputs("positions", inputs, 2, 2);
  const TensorType &x = inputs[0], &table = inputs[1];
  require_float("positions", "the input", x);
  require_rank("positions", "the input", x, 3);
  require_same_dtype("positions", "the input", x, "the table", table);
  require_rank("positions", "the table", table, 2);
  if (last_dim(table) != last_dim(x))
    throw plan_error(
        fmt::format("positions: the input's last dim is {}, the table is {} wide", last_dim(x), last_dim(table)));
  if (table.shape[0] < x.shape[1])
    throw plan_error(
        fmt::format("positions: a sample has {} tokens, the table has {} rows", x.shape[1], table.shape[0]));
  require_chunks("positions", attrs, x.shape[1]);
  return {x};
}

void derive_positions(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0], table = node.inputs[1], dy = builder.gradient(node.outputs[0]);
  if (builder.wants(table))
    builder.contribute(
        table, builder.emit(positions_grad, {dy}, {wide_like(builder.type(table))}, token_attrs(node.attrs))[0]);
  if (builder.wants(x)) builder.contribute(x, dy);
}

// Only the rows at the tokens' positions are read.
Cost cost_positions(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_of(count(outputs[0]), {inputs[0]}, outputs);
}

}  // namespace

const OpDef positions = {.name = "positions",
                         .distribution = Distribution::own,
                         .infer = infer_positions,
                         .derive = derive_positions,
                         .cost = cost_positions};
const OpDef positions_grad = {
    .name = "positions_grad", .role = OpRole::derivative, .shapes = "dy [..,W] -> dtable [P,W]", .cost = per_input<1>};

}  // namespace prun::ops
