// expert_linear and its two derivatives: as many products as there are experts, in one call.
//
// Slots that no token took hold zeros, and are multiplied with the others: telling them apart would take a look at them
// first, which the host must not wait for.
#include <fmt/format.h>

#include "gemm.h"

namespace prun::cuda {
namespace {

// C = op(A)·op(B) for each expert, with A and B the reads and C the write; all are [experts, rows, columns].
template <bool transpose_a, bool transpose_b>
Gemm gemm_of(const OpView& view) {
  const Tensor a = view.read(0), b = view.read(1), c = view.write(0);
  for (const Tensor& t : {a, b, c})
    if (t.shape.rank() != 3 || t.shape[0] != c.shape[0])
      throw Failure(PRUN_EINVAL,
                    fmt::format("{}: a tensor is not of three dims, as many experts as the others first", view.kind()));
  Gemm g;
  g.shape.batch = c.shape[0], g.shape.m = c.shape[1], g.shape.n = c.shape[2];
  g.shape.k = a.shape[transpose_a ? 1 : 2];
  g.shape.transpose_a = transpose_a, g.shape.transpose_b = transpose_b;
  g.shape.input = a.dtype, g.shape.output = c.dtype;
  g.a = a.ptr, g.b = b.ptr, g.c = c.ptr;
  view.expect_count(a, g.shape.batch * g.shape.m * g.shape.k);
  view.expect_count(b, g.shape.batch * g.shape.k * g.shape.n);
  if (b.dtype != a.dtype || c.dtype != (transpose_a ? int{PRUN_F32} : a.dtype))
    throw Failure(PRUN_EINVAL, fmt::format("{}: its tensors are of several types", view.kind()));
  return g;
}

// Adds to the sum of earlier microbatches.
Gemm dw_add(const OpView& view) {
  Gemm g = gemm_of<true, false>(view);
  view.expect_count(view.read(2), view.write(0).count());
  g.added = view.in<float>(2);
  return g;
}

template <Gemm (*gemm)(const OpView&)>
std::unique_ptr<Kernel> make(const OpView& view) {
  return make_gemm(view, gemm(view));
}
template <Gemm (*gemm)(const OpView&)>
size_t workspace(const OpView& view) {
  return gemm_workspace(gemm(view));
}
template <Gemm (*gemm)(const OpView&)>
constexpr KernelEntry entry(const char* kind) {
  return {kind, make<gemm>, workspace<gemm>};
}

constexpr KernelEntry kEntries[] = {
    entry<gemm_of<false, false>>("expert_linear"),
    entry<gemm_of<false, true>>("expert_linear_dx"),
    entry<gemm_of<true, false>>("expert_linear_dw"),
    entry<dw_add>("expert_linear_dw_add"),
};

}  // namespace

std::span<const KernelEntry> expert_linear_kernels() { return kEntries; }

}  // namespace prun::cuda
