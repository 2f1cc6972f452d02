// norm2 and the coefficient by which gradients are clipped. The sum of squares runs in f64 over chunks in a fixed
// order; the coefficient is torch.nn.utils.clip_grad_norm_'s.
#include <algorithm>
#include <cmath>
#include <vector>

#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"

namespace prun::cpu {
namespace {

PRUN_CLONES double sum_squares(const float* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

std::unique_ptr<Kernel> make_norm2(const OpView& view) {
  struct Piece {
    const float* data;
    int64_t count;
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < view.reads(); ++i) pieces.push_back({view.in<float>(i), view.read(i).count()});
  view.expect_count(view.write(0), 1);
  return kernel_of([pieces, sum = view.out<float>(0), threads = view.threads()] {
    double total = 0;
    for (const Piece& piece : pieces) {
      total += parallel_sum(threads, piece.count,
                            [&](int64_t begin, int64_t end) { return sum_squares(piece.data + begin, end - begin); });
    }
    *sum = static_cast<float>(total);
  });
}

std::unique_ptr<Kernel> make_clip_coefficient(const OpView& view) {
  view.expect_count(view.read(0), 1);
  view.expect_count(view.write(0), 1);
  float* norm = nullptr;
  if (view.writes() > 1) {
    view.expect_count(view.write(1), 1);
    norm = view.out<float>(1);
  }
  return kernel_of(
      [norm2 = view.in<float>(0), coefficient = view.out<float>(0), norm, max = view.attrs().number("max", 1)] {
        const double length = std::sqrt(static_cast<double>(*norm2));
        *coefficient = static_cast<float>(std::min(1.0, max / (length + 1e-6)));
        if (norm != nullptr) *norm = static_cast<float>(length);
      });
}

constexpr KernelEntry kEntries[] = {{"norm2", make_norm2}, {"clip_coefficient", make_clip_coefficient}};

}  // namespace

std::span<const KernelEntry> norm_kernels() { return kEntries; }

}  // namespace prun::cpu
