// embedding: the rows of a table that tokens select, plus the rows of a position table in order.
//
// The derivative adds rows in token order, so that it is bitwise reproducible. With attribute axis the table is the
// rank's run of rows; tokens of other ranks yield zeros, and no gradient. With attribute valid, rows at or above it are
// padding, which no token selects.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_embedding(const Types& inputs, const Attrs&) {
  require_inputs("embedding", inputs, 2, 3);
  const TensorType &tokens = inputs[0], &table = inputs[1];
  require_dtype("embedding", "the token tensor", tokens, Dtype::i32);
  require_rank_at_least("embedding", "the token tensor", tokens, 1);
  require_float("embedding", "the table", table);
  require_rank("embedding", "the table", table, 2);
  if (inputs.size() == 3) {
    const TensorType& positions = inputs[2];
    require_same_dtype("embedding", "the table", table, "the position table", positions);
    require_rank("embedding", "the position table", positions, 2);
    if (last_dim(positions) != last_dim(table))
      throw plan_error(fmt::format("embedding: the table is {} wide, the position table is {}", last_dim(table),
                                   last_dim(positions)));
    if (positions.shape[0] < last_dim(tokens))
      throw plan_error(fmt::format("embedding: a sample has {} tokens, the position table has {} rows",
                                   last_dim(tokens), positions.shape[0]));
  }
  Shape shape = tokens.shape;
  shape.push_back(last_dim(table));
  return {{table.dtype, shape}};
}

void derive_embedding(GradientBuilder& builder, const NodeView& node) {
  ValueId table = node.inputs[1], positions = node.inputs.size() == 3 ? node.inputs[2] : ValueId();
  bool with_positions = positions >= 0 && builder.wants(positions);
  if (!builder.wants(table) && !with_positions) return;
  Attrs attrs;
  attrs.set("vocab", builder.type(table).shape[0]);
  if (node.attrs.has("axis")) attrs.set("axis", node.attrs.text("axis"));
  if (node.attrs.has("valid")) attrs.set("valid", node.attrs.integer("valid"));
  attrs.set("positions", with_positions ? builder.type(positions).shape[0] : int64_t{0});
  Types types = {wide_like(builder.type(table))};
  if (with_positions) types.push_back(wide_like(builder.type(positions)));
  std::vector<ValueId> grads =
      builder.emit(embedding_grad, {node.inputs[0], builder.gradient(node.outputs[0])}, types, attrs);
  if (builder.wants(table)) builder.contribute(table, grads[0]);
  if (with_positions) builder.contribute(positions, grads[1]);
}

// Only the selected rows are read.
Cost cost_embedding(const Types& inputs, const Types& outputs, const Attrs&) {
  Cost cost = cost_of(inputs.size() == 3 ? count(outputs[0]) : 0, {inputs[0]}, outputs);
  cost.bytes *= 2;
  return cost;
}

Cost cost_embedding_grad(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_of(static_cast<double>(outputs.size()) * count(inputs[1]), inputs, outputs);
}

}  // namespace

const OpDef embedding = {.name = "embedding",
                         .distribution = Distribution::own,
                         .infer = infer_embedding,
                         .derive = derive_embedding,
                         .cost = cost_embedding};
const OpDef embedding_grad = {.name = "embedding_grad",
                              .role = OpRole::derivative,
                              .shapes = "tokens #R, dy [..,W] -> dtable [vocab,W], dpositions? [positions,W]",
                              .cost = cost_embedding_grad};

}  // namespace prun::ops
