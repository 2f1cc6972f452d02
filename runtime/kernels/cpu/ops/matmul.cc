// matmul: one GEMM after the other, each on all cores of the kernel, so that they share scratch.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/ops/elementwise.h"
#include "prun/sdk/operand_view.h"

namespace prun::cpu {
namespace {

struct Matmul {
  sdk::StridedMatmul at;
  GemmShape shape;
};

Matmul matmul_of(const OpView& view) {
  const Shape &a = view.read(0).shape, &b = view.read(1).shape, &y = view.write(0).shape;
  const std::optional<sdk::StridedMatmul> at = sdk::strided_matmul(view.attrs().text("views"), a, b, y);
  PRUN_CHECK(at.has_value(), shape_text(y));
  const bool transpose_a = view.attrs().integer("transpose_a") != 0,
             transpose_b = view.attrs().integer("transpose_b") != 0;
  GemmShape s;
  s.transpose_a = transpose_a != at->a.transposed;
  s.transpose_b = transpose_b != at->b.transposed;
  s.m = at->y.rows;
  s.n = at->y.columns;
  s.k = transpose_a ? at->a.rows : at->a.columns;
  s.input = view.read(0).dtype;
  s.output = view.write(0).dtype;
  s.threads = view.threads();
  PRUN_CHECK((transpose_a ? at->a.columns : at->a.rows) == s.m && (transpose_b ? at->b.rows : at->b.columns) == s.n &&
                 (transpose_b ? at->b.columns : at->b.rows) == s.k,
             shape_text(y));
  if (!at->a.is_dense()) s.stride_a = at->a.row;
  if (!at->b.is_dense()) s.stride_b = at->b.row;
  if (!at->y.is_dense()) s.stride_c = at->y.row;
  return {*at, s};
}

std::unique_ptr<Kernel> make(const OpView& view) {
  const auto [at, shape] = matmul_of(view);
  const int64_t batches = shape.m * shape.n == 0 ? 0 : element_count(at.leading);
  const int64_t in = dtype_bytes(shape.input), out = dtype_bytes(shape.output);
  const Scratch scratch = view.scratch(gemm_scratch_bytes(shape));
  std::vector<Gemm> gemms;
  for (int64_t i = 0; i < batches; ++i)
    gemms.emplace_back(shape, bytes_in(view, 0) + at.a.offset_of(at.leading, i) * in,
                       bytes_in(view, 1) + at.b.offset_of(at.leading, i) * in, nullptr,
                       bytes_out(view, 0) + at.y.offset_of(at.leading, i) * out, scratch.data);
  return kernel_of([gemms = std::move(gemms), scratch] {
    for (const Gemm& gemm : gemms) gemm.run();
  });
}

}  // namespace

const Family matmul_kernels = {
    {"matmul", make, Accepts::floats, [](const OpView& view) { return gemm_scratch_bytes(matmul_of(view).shape); }}};

}  // namespace prun::cpu
