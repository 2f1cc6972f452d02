// Computes norm2 and the coefficient that clips gradients, as torch.nn.utils.clip_grad_norm_ does. Squares are summed
// in f64 over chunks in a fixed order and stored as f64, because f32 cannot hold the square of a number beyond 1.8e19
// or below 1e-23.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/ops/elementwise.h"

namespace prun::cpu {
namespace {

constexpr auto kSquare = [](const auto& x) PRUN_INLINED { return x * x; };

struct Part {
  const float* data;
  int64_t count;
  double weight;
};

// The attribute `weights` has one number for each tensor, 1 by default.
std::vector<Part> whole_tensors(const OpView& view) {
  const std::vector<double> weights = view.attrs().numbers("weights");
  PRUN_CHECK(weights.empty() || weights.size() == view.reads(), std::to_string(weights.size()));
  std::vector<Part> parts;
  for (size_t i = 0; i < view.reads(); ++i)
    parts.push_back({view.in<float>(i), view.read(i).count(), weights.empty() ? 1 : weights[i]});
  return parts;
}

// Returns the rank's part of one flat vector, whose elements from piece_starts[i] on have the weight piece_weights[i].
std::vector<Part> weighted_pieces(const OpView& view) {
  const std::vector<int64_t> starts = view.attrs().integers("piece_starts");
  const std::vector<double> weights = view.attrs().numbers("piece_weights");
  PRUN_CHECK(view.reads() == 1 && weights.size() == starts.size(), std::to_string(weights.size()));
  const float* data = view.in<float>(0);
  const int64_t n = view.read(0).count(), offset = n * view.share("axis").index;
  std::vector<Part> parts;
  int64_t begin = 0;
  const auto add = [&](int64_t end, double weight) {
    end = std::clamp<int64_t>(end, begin, n);
    if (!parts.empty() && parts.back().weight == weight)
      parts.back().count += end - begin;
    else if (begin < end)
      parts.push_back({data + begin, end - begin, weight});
    begin = end;
  };
  for (size_t i = 0; i < starts.size(); ++i) add(starts[i] - offset, i == 0 ? 1 : weights[i - 1]);
  add(n, weights.empty() ? 1 : weights.back());
  return parts;
}

std::unique_ptr<Kernel> make_norm2(const OpView& view) {
  view.expect_count(view.write(0), 1);
  return kernel_of([parts = view.attrs().has("piece_starts") ? weighted_pieces(view) : whole_tensors(view),
                    sum = view.out<double>(0), threads = view.threads()] {
    double total = 0;
    for (const Part& part : parts) {
      total += part.weight * parallel_sum(threads, part.count, [&](int64_t begin, int64_t end) {
                 return sum_range(kSquare, end - begin, part.data + begin);
               });
    }
    *sum = total;
  });
}

std::unique_ptr<Kernel> make_clip_coefficient(const OpView& view) {
  view.expect_count(view.read(0), 1);
  view.expect_count(view.write(0), 1);
  double* norm = nullptr;
  if (view.writes() > 1) {
    view.expect_count(view.write(1), 1);
    norm = view.out<double>(1);
  }
  return kernel_of([norm2 = view.in<double>(0), coefficient = view.out<float>(0), norm,
                    max = view.attrs().number("max", 1), skip = view.attrs().integer("skip") != 0] {
    const double length = std::sqrt(*norm2);
    *coefficient = max > 0 ? static_cast<float>(std::min(1.0, max / (length + 1e-6))) : 1.0f;
    if (skip && !std::isfinite(*norm2)) *coefficient = -1;
    if (norm != nullptr) *norm = length;
  });
}

}  // namespace

const Family norm_kernels = {{"norm2", make_norm2, Accepts::wide_result},
                             {"clip_coefficient", make_clip_coefficient, Accepts::wide_sums}};

}  // namespace prun::cpu
