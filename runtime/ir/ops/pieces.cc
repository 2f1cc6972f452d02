// join_pieces, cut_pieces, take_piece: convert between tensors with the ranks' pieces in sequence, as collectives
// transfer them, and tensors split along one of their dims.
//
// The first dim of a gathered x numbers the pieces: join_pieces turns [N, a, b, c] into [a, N·b, c] for dim 1.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

int64_t require_pieces(std::string_view op, const Attrs& attrs) {
  int64_t pieces = attrs.integer("pieces", 1);
  if (pieces < 1) throw plan_error(fmt::format("{}: {} pieces; at least 1 is needed", op, pieces));
  return pieces;
}

// Returns the attribute `dim` as an index into a whole tensor of `rank` dims.
size_t require_dim(std::string_view op, const Attrs& attrs, size_t rank) {
  int64_t dim = attrs.integer("dim");
  if (dim < 0 || dim >= static_cast<int64_t>(rank))
    throw plan_error(
        fmt::format("{}: dim is {}, should be 0 to {}", op, dim, rank == 0 ? 0 : static_cast<int64_t>(rank) - 1));
  return dim;
}

Types infer_join(const Types& inputs, const Attrs& attrs) {
  require_inputs("join_pieces", inputs, 1, 1);
  const TensorType& x = inputs[0];
  require_rank_at_least("join_pieces", "the input", x, 2);
  int64_t pieces = require_pieces("join_pieces", attrs);
  if (x.shape[0] != pieces)
    throw plan_error(fmt::format("join_pieces: the input is {}, its first dim should be the {} pieces",
                                 shape_text(x.shape), pieces));
  Shape y(x.shape.begin() + 1, x.shape.end());
  y[require_dim("join_pieces", attrs, y.size())] *= pieces;
  return {{x.dtype, y}};
}

// Returns the shape of one piece of x.
Shape piece_shape(std::string_view op, const Types& inputs, const Attrs& attrs) {
  require_inputs(op, inputs, 1, 1);
  const TensorType& x = inputs[0];
  require_rank_at_least(op, "the input", x, 1);
  int64_t pieces = require_pieces(op, attrs);
  size_t dim = require_dim(op, attrs, x.shape.size());
  if (x.shape[dim] % pieces != 0)
    throw plan_error(
        fmt::format("{}: dim {} of {} does not divide into {} pieces", op, dim, shape_text(x.shape), pieces));
  Shape piece = x.shape;
  piece[dim] /= pieces;
  return piece;
}

Types infer_cut(const Types& inputs, const Attrs& attrs) {
  Shape y = piece_shape("cut_pieces", inputs, attrs);
  y.insert(y.begin(), attrs.integer("pieces", 1));
  return {{inputs[0].dtype, y}};
}

Types infer_take(const Types& inputs, const Attrs& attrs) {
  return {{inputs[0].dtype, piece_shape("take_piece", inputs, attrs)}};
}

void derive_by(GradientBuilder& builder, const NodeView& node, const OpDef& inverse) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(x, builder.emit(inverse, {builder.gradient(node.outputs[0])}, {builder.type(x)}, node.attrs)[0]);
}
void derive_join(GradientBuilder& builder, const NodeView& node) { derive_by(builder, node, cut_pieces); }
void derive_cut(GradientBuilder& builder, const NodeView& node) { derive_by(builder, node, join_pieces); }

// The other ranks have the gradients of their pieces.
void derive_take(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  TensorType pieces = builder.type(node.outputs[0]);
  pieces.shape.insert(pieces.shape.begin(), node.attrs.integer("pieces", 1));
  Attrs gather;
  gather.set("axis", node.attrs.text("axis"));
  ValueId all = builder.emit(all_gather, {builder.gradient(node.outputs[0])}, {pieces}, gather)[0];
  Attrs join;
  join.set("pieces", node.attrs.integer("pieces", 1));
  join.set("dim", node.attrs.integer("dim"));
  builder.contribute(x, builder.emit(join_pieces, {all}, {builder.type(x)}, join)[0]);
}

Types infer_take_slots(const Types& inputs, const Attrs& attrs) {
  require_inputs("take_slots", inputs, 1, 1);
  require_dtype("take_slots", "the slot tensor", inputs[0], Dtype::i32);
  if (attrs.integer("run") < 1 || attrs.integer("pieces") < 1)
    throw plan_error(fmt::format("take_slots: {} pieces of {} slots; at least 1 is needed", attrs.integer("pieces"),
                                 attrs.integer("run")));
  return inputs;
}

// Only the piece is read.
Cost cost_take(const Types&, const Types& outputs, const Attrs&) { return cost_of(0, outputs, outputs); }

}  // namespace

const OpDef join_pieces = {.name = "join_pieces",
                           .distribution = Distribution::whole,
                           .moves = true,
                           .infer = infer_join,
                           .derive = derive_join};
const OpDef cut_pieces = {
    .name = "cut_pieces", .distribution = Distribution::whole, .moves = true, .infer = infer_cut, .derive = derive_cut};
const OpDef take_piece = {.name = "take_piece",
                          .distribution = Distribution::whole,
                          .moves = true,
                          .infer = infer_take,
                          .derive = derive_take,
                          .cost = cost_take};
const OpDef take_slots = {
    .name = "take_slots", .distribution = Distribution::whole, .infer = infer_take_slots, .cost = per_output<2>};

}  // namespace prun::ops
