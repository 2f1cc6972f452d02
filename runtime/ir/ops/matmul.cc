// matmul: one GEMM for each index of the leading dims, which both operands have. nn.linear multiplies with a parameter.
#include <fmt/format.h>

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

Types infer_matmul(const Types& inputs, const Attrs& attrs) {
  require_inputs("matmul", inputs, 2, 2);
  require_float("matmul", "the first tensor", inputs[0]);
  require_same_dtype("matmul", "the first tensor", inputs[0], "the second", inputs[1]);
  require_rank_at_least("matmul", "the first tensor", inputs[0], 2);
  require_rank_at_least("matmul", "the second tensor", inputs[1], 2);
  const Dims a = dims_of(inputs[0], attrs.integer("transpose_a") != 0),
             b = dims_of(inputs[1], attrs.integer("transpose_b") != 0);
  if (a.batch != b.batch)
    throw plan_error(fmt::format("matmul: {} and {} should be equal in all dims but the last two",
                                 shape_text(inputs[0].shape), shape_text(inputs[1].shape)));
  if (a.columns != b.rows)
    throw plan_error(
        fmt::format("matmul: {} and {} do not multiply: the first has rows of {}, the second columns of "
                    "{}",
                    shape_text(inputs[0].shape), shape_text(inputs[1].shape), a.columns, b.rows));
  Shape shape = a.batch;
  shape.insert(shape.end(), {a.rows, b.columns});
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
  const double k = static_cast<double>(dims_of(inputs[0], attrs.integer("transpose_a") != 0).columns);
  return product_cost(outputs.empty() ? 0 : 2 * k * count(outputs[0]), inputs, outputs);
}

}  // namespace

const OpDef matmul = {.name = "matmul",
                      .distribution = Distribution::own,
                      .infer = infer_matmul,
                      .derive = derive_matmul,
                      .cost = matmul_cost};

}  // namespace prun::ops
