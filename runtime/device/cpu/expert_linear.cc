// expert_linear and its two gradients: one product of linear's kind for each expert, one after the other on all the
// kernel's cores, so that they share their scratch.
#include "device/cpu/gemm.h"
#include "device/cpu/kernel.h"

namespace prun::cpu {
namespace {

// Three dims [experts, rows, columns].
struct Sizes {
  int64_t experts, rows, columns;
  explicit Sizes(const Tensor& t) {
    PRUN_CHECK(t.shape.size() == 3, shape_text(t.shape));
    experts = t.shape[0], rows = t.shape[1], columns = t.shape[2];
  }
};

// The product of one expert, C = op(A)·op(B), with A and B the reads and C the write.
GemmShape shape_of(const OpView& view, bool transpose_a, bool transpose_b) {
  const Sizes a(view.read(0)), b(view.read(1)), c(view.write(0));
  GemmShape s;
  s.m = c.rows;
  s.n = c.columns;
  s.k = transpose_a ? a.rows : a.columns;
  s.transpose_a = transpose_a;
  s.transpose_b = transpose_b;
  s.input = view.read(0).dtype;
  s.output = view.write(0).dtype;
  s.threads = view.threads();
  view.expect_count(view.read(0), c.experts * s.m * s.k);
  view.expect_count(view.read(1), c.experts * s.k * s.n);
  PRUN_CHECK(a.experts == c.experts && b.experts == c.experts, shape_text(view.write(0).shape));
  return s;
}

template <bool transpose_a, bool transpose_b>
int64_t workspace(const OpView& view) {
  return gemm_scratch_bytes(shape_of(view, transpose_a, transpose_b));
}

// The piece of expert `e` of a tensor.
template <class Pointer>
Pointer expert(Pointer data, const Tensor& t, int64_t e) {
  return data + e * (t.bytes() / t.shape[0]);
}
const std::byte* data_of(const OpView& view, size_t read) {
  return view.read(read).dtype == Dtype::f32 ? reinterpret_cast<const std::byte*>(view.in<float>(read))
                                             : reinterpret_cast<const std::byte*>(view.in<bf16>(read));
}
std::byte* result_of(const OpView& view) {
  return view.write(0).dtype == Dtype::f32 ? reinterpret_cast<std::byte*>(view.out<float>(0))
                                           : reinterpret_cast<std::byte*>(view.out<bf16>(0));
}

template <bool transpose_a, bool transpose_b>
std::unique_ptr<Kernel> make(const OpView& view) {
  const GemmShape shape = shape_of(view, transpose_a, transpose_b);
  Scratch scratch = view.scratch(gemm_scratch_bytes(shape));
  std::vector<Gemm> products;
  for (int64_t e = 0; e < view.write(0).shape[0]; ++e)
    products.emplace_back(shape, expert(data_of(view, 0), view.read(0), e), expert(data_of(view, 1), view.read(1), e),
                          nullptr, expert(result_of(view), view.write(0), e), scratch.data);
  return kernel_of([products = std::move(products), scratch] {
    for (const Gemm& product : products) product.run();
  });
}

constexpr KernelEntry kEntries[] = {
    {"expert_linear", make<false, false>, Accepts::floats, workspace<false, false>},
    {"expert_linear_dx", make<false, true>, Accepts::floats, workspace<false, true>},
    {"expert_linear_dw", make<true, false>, Accepts::floats, workspace<true, false>},
};

}  // namespace

std::span<const KernelEntry> expert_linear_kernels() { return kEntries; }

}  // namespace prun::cpu
