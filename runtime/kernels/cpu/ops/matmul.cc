// matmul: one GEMM after the other, each on all cores of the kernel, so that they share scratch.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/ops/elementwise.h"

namespace prun::cpu {
namespace {

GemmShape shape_of(const OpView& view) {
  const Shape &a = view.read(0).shape, &c = view.write(0).shape;
  const size_t rank = c.size();
  PRUN_CHECK(rank >= 2 && a.size() == rank, shape_text(c));
  GemmShape s;
  s.transpose_a = view.attrs().integer("transpose_a") != 0;
  s.transpose_b = view.attrs().integer("transpose_b") != 0;
  s.m = c[rank - 2];
  s.n = c[rank - 1];
  s.k = a[s.transpose_a ? rank - 2 : rank - 1];
  s.input = view.read(0).dtype;
  s.output = view.write(0).dtype;
  s.threads = view.threads();
  return s;
}

std::unique_ptr<Kernel> make(const OpView& view) {
  const GemmShape shape = shape_of(view);
  const int64_t count = view.write(0).count(), batches = count == 0 ? 0 : count / (shape.m * shape.n);
  view.expect_count(view.read(0), batches * shape.m * shape.k);
  view.expect_count(view.read(1), batches * shape.k * shape.n);
  const Scratch scratch = view.scratch(gemm_scratch_bytes(shape));
  std::vector<Gemm> gemms;
  for (int64_t b = 0; b < batches; ++b)
    gemms.emplace_back(shape, bytes_in(view, 0) + b * (view.read(0).bytes() / batches),
                       bytes_in(view, 1) + b * (view.read(1).bytes() / batches), nullptr,
                       bytes_out(view, 0) + b * (view.write(0).bytes() / batches), scratch.data);
  return kernel_of([gemms = std::move(gemms), scratch] {
    for (const Gemm& gemm : gemms) gemm.run();
  });
}

}  // namespace

const Family matmul_kernels = {
    {"matmul", make, Accepts::floats, [](const OpView& view) { return gemm_scratch_bytes(shape_of(view)); }}};

}  // namespace prun::cpu
