// matmul: one GEMM for each index of the leading dims, which both operands have. nn.linear multiplies with a parameter.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

struct Dims {
  Shape batch;
  int64_t rows, columns;
};
Dims dims_of(const TensorType& type, bool transposed) {
  Dims dims{type.shape, type.shape[type.shape.size() - 2], type.shape.back()};
  dims.batch.resize(type.shape.size() - 2);
  if (transposed) std::swap(dims.rows, dims.columns);
  return dims;
}

// Returns the operands as the op's views read them, with a matrix as their last two dims.
Types operands_of(const Types& inputs, const Attrs& attrs) {
  const std::vector<sdk::OperandView> views = views_of(attrs);
  Types operands = inputs;
  for (int i = 0; i < std::ssize(inputs); ++i) {
    const sdk::OperandView* const view = sdk::view_of_operand(views, i);
    if (view == nullptr) continue;
    size_t rank = 2;
    for (const sdk::ViewedDim& dim : view->dims) rank = std::max(rank, static_cast<size_t>(dim.to + 1));
    operands[i].shape = viewed_shape("matmul", *view, inputs[i].shape, rank);
    if (!sdk::strided_matrices(view, inputs[i].shape, rank))
      throw plan_error(fmt::format("matmul: neither rows nor columns of '{}' are contiguous in {}",
                                   sdk::operand_views_text({*view}), shape_text(inputs[i].shape)));
  }
  return operands;
}

// Returns whether leading dims fit; a view may repeat its operand.
bool lead_alike(const Shape& a, const Shape& b, bool viewed) {
  if (a.size() != b.size()) return false;
  for (size_t d = 0; d < a.size(); ++d)
    if (a[d] != b[d] && !(viewed && (a[d] == 1 || b[d] == 1))) return false;
  return true;
}

Types infer_matmul(const Types& tensors, const Attrs& attrs) {
  const Types inputs = operands_of(own_inputs(tensors, attrs), attrs);
  require_inputs("matmul", inputs, 2, 2);
  require_float("matmul", "the first tensor", inputs[0]);
  require_same_dtype("matmul", "the first tensor", inputs[0], "the second", inputs[1]);
  require_rank_at_least("matmul", "the first tensor", inputs[0], 2);
  require_rank_at_least("matmul", "the second tensor", inputs[1], 2);
  const Dims a = dims_of(inputs[0], attrs.integer("transpose_a") != 0),
             b = dims_of(inputs[1], attrs.integer("transpose_b") != 0);
  const std::vector<sdk::OperandView> views = views_of(attrs);
  if (!lead_alike(a.batch, b.batch, !views.empty()))
    throw plan_error(fmt::format("matmul: {} and {} should be equal in all dims but the last two",
                                 shape_text(inputs[0].shape), shape_text(inputs[1].shape)));
  if (a.columns != b.rows)
    throw plan_error(
        fmt::format("matmul: {} and {} do not multiply: the first has rows of {}, the second columns of "
                    "{}",
                    shape_text(inputs[0].shape), shape_text(inputs[1].shape), a.columns, b.rows));
  Shape shape = a.batch;
  for (size_t d = 0; d < shape.size(); ++d) shape[d] = std::max(shape[d], b.batch[d]);
  shape.insert(shape.end(), {a.rows, b.columns});
  if (attrs.has("whole")) {
    shape = shape_with_part("matmul", attrs, 2, shape);
  } else if (const sdk::OperandView* view = sdk::view_of_operand(views, 2)) {
    Shape stored;
    for (const sdk::ViewedDim& dim : view->dims)
      if (dim.to >= 0 && dim.to < std::ssize(shape)) stored.push_back(shape[dim.to]);
    if (stored.size() != shape.size() || viewed_shape("matmul", *view, stored, shape.size()) != shape)
      throw plan_error(fmt::format("matmul: the view '{}' does not permute {}", sdk::operand_views_text({*view}),
                                   shape_text(shape)));
    shape = stored;
  }
  return {{inputs[0].dtype, shape}};
}

Attrs transposes(bool a, bool b) {
  Attrs attrs;
  if (a) attrs.set("transpose_a", int64_t{1});
  if (b) attrs.set("transpose_b", int64_t{1});
  return attrs;
}

// With y = A·B: dA = dy·Bᵀ and dB = Aᵀ·dy. A stored transpose is written transposed.
void derive_matmul(GradientBuilder& builder, const NodeView& node) {
  const ValueId a = node.inputs[0], b = node.inputs[1], dy = builder.gradient(node.outputs[0]);
  const bool ta = node.attrs.integer("transpose_a") != 0, tb = node.attrs.integer("transpose_b") != 0;
  if (builder.wants(a))
    builder.contribute(a, ta ? builder.emit(matmul, {b, dy}, {builder.type(a)}, transposes(tb, true))[0]
                             : builder.emit(matmul, {dy, b}, {builder.type(a)}, transposes(false, !tb))[0]);
  if (builder.wants(b))
    builder.contribute(b, tb ? builder.emit(matmul, {dy, a}, {builder.type(b)}, transposes(true, ta))[0]
                             : builder.emit(matmul, {a, dy}, {builder.type(b)}, transposes(!ta, false))[0]);
}

Cost matmul_cost(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  const Types own = own_inputs(inputs, attrs), written = written_types(own.size(), outputs, attrs);
  const double k = static_cast<double>(dims_of(operands_of(own, attrs)[0], attrs.integer("transpose_a") != 0).columns);
  return product_cost(written.empty() ? 0 : 2 * k * count(written[0]), viewed_types(own, attrs), written);
}

}  // namespace

const OpDef matmul = {.name = "matmul",
                      .distribution = Distribution::own,
                      .infer = infer_matmul,
                      .derive = derive_matmul,
                      .cost = matmul_cost};

}  // namespace prun::ops
