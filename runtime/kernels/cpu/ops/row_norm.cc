// layernorm and rmsnorm (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019) over the last dim, and their
// gradients; computed in f32, with a variance of centred values.
//
// The reductions over rows (dgamma, dbeta) are divided into chunks by the number of rows alone and added in the order
// of chunks, so they are bitwise identical on any number of threads. The forms with the residual's add alternate
// between the two ops on a few rows in the first-level cache. So their results are bitwise identical to the two
// separate ops, and memory is read once.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

// Pairs, of which rmsnorm uses only the first: the parameters gamma and beta, their gradients, statistics of rows.
template <class T>
using Pair = std::array<T*, 2>;

// Rows of bf16 that consist of WholeTwos are converted to f32 once ("kept"): later passes read them, and gamma and
// beta, from the first-level cache. The limits are the longest rows for which this is faster; backward reads rows more
// often, so its limit is higher.
constexpr float kLeastSquare = 1e-32f;  // below it, squares may have been subnormal
constexpr int64_t kTogether = 8, kLongestForward = 256, kLongestBackward = 1024;

template <int lanes, class T>
bool keeps_rows(int64_t width, int64_t longest) {
  return std::is_same_v<T, bf16> && width % (2 * lanes) == 0 && width <= longest;
}

// The type of gamma and beta for rows of T.
template <class T, bool kept>
using Param = std::conditional_t<kept, float, T>;

// Calls for_two_lanes. Kept rows have no remaining elements, so the code for these, which costs time, is omitted.
template <bool kept, int lanes, class T, class F>
PRUN_INLINE void for_row(int64_t n, const F& f) {
  if constexpr (kept)
    for (int64_t i = 0; i < n; i += 2 * lanes) f(WholeTwo<lanes, T>{i});
  else
    for_two_lanes<lanes, T>(n, f);
}

// Converts a row to f32, in the order of WholeTwo.
template <int lanes, class T>
PRUN_INLINE void widen_row(const T* x, float* to, int64_t width) {
  for_row<true, lanes, T>(width, [=](auto at) PRUN_INLINED { at.store(to, at.load(x)); });
}

// Returns the mean of a row, or the mean of its squared distances from the centre, in f64. An f32 overflows at squares
// of numbers beyond 1.8e19.
template <class T>
double mean_in_f64(const T* x, int64_t width) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(widen(x[i]));
  return sum / static_cast<double>(width);
}
template <class T>
double square_in_f64(const T* x, double centre, int64_t width) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double d = static_cast<double>(widen(x[i])) - centre;
    sum += d * d;
  }
  return sum / static_cast<double>(width);
}

// Normalizes n <= kTogether rows, each pass over all of them before the next, to hide the latency of each row's
// reduction, division and square root. The result of a row does not depend on n.
//
//      mean of rows 0..n-1 | Σ (x - mean)² of rows 0..n-1 | y of rows 0..n-1
//                            prefetches rows n..2n-1
//
// stats: the reciprocal of the standard deviation and the mean; for rmsnorm the reciprocal of the root mean square.
// wide: scratch for the rows as f32, if they are kept.
template <bool centred, int lanes, bool kept, class T>
PRUN_INLINE void forward_block(const T* x, Pair<const Param<T, kept>> params, T* y, Pair<float> stats, int64_t n,
                               int64_t width, double eps, float* wide) {
  Floats<lanes> sums[kTogether];
  float folded[kTogether];
  const auto again = [=](int64_t r) PRUN_INLINED {
    if constexpr (kept)
      return static_cast<const float*>(wide + r * width);
    else
      return x + r * width;
  };
  if constexpr (centred) {
    for (int64_t r = 0; r < n; ++r) {
      Two<lanes> sum = {};
      for_row<kept, lanes, T>(width, [&](auto at) PRUN_INLINED {
        const auto all = at.load(x + r * width);
        if constexpr (kept) at.store(wide + r * width, all);
        sum += all;
      });
      sums[r] = sum.v[0] + sum.v[1];
    }
    fold_rows<lanes>(sums, n, folded);
  }
  for (int64_t r = 0; r < n; ++r) {
    Two<lanes> squares = {};
    float centre = centred ? folded[r] / static_cast<float>(width) : 0;
    if (centred && !std::isfinite(centre)) centre = static_cast<float>(mean_in_f64(x + r * width, width));
    if constexpr (centred) stats[1][r] = centre;
    for_row<kept, lanes, T>(width, [&](auto at) PRUN_INLINED {
      prefetch_lines<2 * lanes>(x + (n + r) * width + at.i);  // the next rows
      if constexpr (kept)
        prefetch_lines<2 * lanes>(y + (n + r) * width + at.i);  // otherwise stores to y stall those to `wide`
      if constexpr (centred) {
        const auto d = at.only(at.load(again(r)) - centre);
        squares += d * d;
        if constexpr (kept) at.store(wide + r * width, d);
      } else {
        const auto all = at.load(x + r * width);
        if constexpr (kept) at.store(wide + r * width, all);
        squares += all * all;
      }
    });
    sums[r] = squares.v[0] + squares.v[1];
  }
  fold_rows<lanes>(sums, n, folded);
  for (int64_t r = 0; r < n; ++r) {
    const float square = folded[r] / static_cast<float>(width) + static_cast<float>(eps);
    const bool f32_holds = square >= kLeastSquare && std::isfinite(square);
    const float factor =
        f32_holds ? 1.0f / std::sqrt(square)
                  : static_cast<float>(
                        1 / std::sqrt(square_in_f64(x + r * width, centred ? stats[1][r] : 0.0f, width) + eps));
    const float centre = centred && !kept ? stats[1][r] : 0;
    stats[0][r] = factor;
    for_row<kept, lanes, T>(width, [=](auto at) PRUN_INLINED {
      const auto row = at.load(again(r));
      const auto normal = [&]() PRUN_INLINED {
        if constexpr (centred && !kept)
          return (row - centre) * factor * at.load(params[0]);
        else
          return row * factor * at.load(params[0]);
      }();
      if constexpr (centred)
        at.store(y + r * width, normal + at.load(params[1]));
      else
        at.store(y + r * width, normal);
    });
  }
}

template <bool centred, class T>
void forward_rows(const T* x, Pair<const T> params, T* y, Pair<float> stats, int64_t rows, int64_t width, double eps) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    const auto blocks = [=]<bool kept>(Pair<const Param<T, kept>> of, int64_t together, float* wide) PRUN_INLINED {
      for (int64_t row = 0; row < rows; row += together)
        forward_block<centred, lanes, kept>(x + row * width, of, y + row * width,
                                            {stats[0] + row, centred ? stats[1] + row : nullptr},
                                            std::min(together, rows - row), width, eps, wide);
    };
    if constexpr (std::is_same_v<T, bf16>) {
      if (keeps_rows<lanes, T>(width, kLongestForward)) {
        alignas(64) float wide[kTogether * kLongestForward], wide_params[2][kLongestForward];
        for (int p = 0; p < (centred ? 2 : 1); ++p) widen_row<lanes>(params[p], wide_params[p], width);
        return blocks.template operator()<true>({wide_params[0], wide_params[1]}, kTogether, wide);
      }
    }
    // f32 rows are memory-bound; processing several at once stalls the stream.
    const bool several = std::is_same_v<T, bf16> && width <= 1536;
    blocks.template operator()<false>(params, several ? 4 : 1, nullptr);
  });
}

// Computes dx of n rows and adds to dgamma and, for layernorm, to dbeta, both in the order of WholeTwo. Prefetches the
// next n rows.
template <bool centred, int n, int lanes, bool kept, class T>
PRUN_INLINE void backward_block(const T* x, const T* dy, const Param<T, kept>* gamma, Pair<const float> stats, T* dx,
                                float* dgamma, float* dbeta, int64_t width, float* wide) {
  float scale[n], centre[n] = {}, along[n], through[n] = {};
  Floats<lanes> products[n] = {}, weights[n] = {};  // sums of g·γ·x̂ and, for layernorm, of g·γ
  for (int r = 0; r < n; ++r) {
    scale[r] = stats[0][r];
    if (centred) centre[r] = stats[1][r];
  }
  for_row<kept, lanes, T>(width, [=, &scale, &centre, &products, &weights](auto at) PRUN_INLINED {
    const auto factors = at.load(gamma);
    auto dg = at.load(dgamma), db = centred ? at.load(dbeta) : dg;
#pragma GCC unroll 4
    for (int r = 0; r < n; ++r) {
      const auto normal = (at.load(x + r * width) - centre[r]) * scale[r], g = at.load(dy + r * width),
                 weighted = g * factors;
      if constexpr (kept) {
        at.store(wide + 2 * r * width, normal);
        at.store(wide + (2 * r + 1) * width, weighted);
      }
      products[r] += at.only(weighted * normal);
      dg = g * normal + dg;
      if constexpr (centred) {
        weights[r] += weighted;
        db = g + db;
      } else {
        static_cast<void>(weights);
      }
    }
    at.store(dgamma, dg);
    if constexpr (centred) at.store(dbeta, db);
  });
  fold_rows<lanes>(products, n, along);
  if constexpr (centred) fold_rows<lanes>(weights, n, through);
  for (int r = 0; r < n; ++r) {
    along[r] = along[r] / static_cast<float>(width) * scale[r];
    through[r] = through[r] / static_cast<float>(width) * scale[r];
  }
  for (int r = 0; r < n; ++r) {
    for_row<kept, lanes, T>(width, [=, factor = scale[r], a = along[r], t = through[r]](auto at) PRUN_INLINED {
      prefetch_lines<2 * lanes>(x + (n + r) * width + at.i);
      prefetch_lines<2 * lanes>(dy + (n + r) * width + at.i);
      if constexpr (kept) {
        at.store(dx + r * width,
                 at.load(wide + (2 * r + 1) * width) * factor - (at.load(wide + 2 * r * width) * a + t));
      } else {
        const auto normal = (at.load(x + r * width) - centre[r]) * factor;
        at.store(dx + r * width, at.load(dy + r * width) * at.load(gamma) * factor - (normal * a + t));
      }
    });
  }
}

template <bool centred, class T>
void backward_rows(const T* x, const T* dy, const T* gamma, Pair<const float> stats, T* dx, float* dgamma, float* dbeta,
                   int64_t rows, int64_t width) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    const auto block = [=]<int n, bool kept>(int64_t row, const Param<T, kept>* of, float* wide) PRUN_INLINED {
      backward_block<centred, n, lanes, kept>(x + row * width, dy + row * width, of,
                                              {stats[0] + row, centred ? stats[1] + row : nullptr}, dx + row * width,
                                              dgamma, dbeta, width, wide);
    };
    int64_t row = 0;
    if constexpr (std::is_same_v<T, bf16>) {
      if (keeps_rows<lanes, T>(width, kLongestBackward)) {
        alignas(64) float wide[4 * kLongestBackward], wide_gamma[kLongestBackward];
        widen_row<lanes>(gamma, wide_gamma, width);
        // Shorter vectors have too few registers for the accumulators of four rows.
        if (lanes == 16 && 2 * width <= kLongestBackward)
          for (; row + 4 <= rows; row += 4) block.template operator()<4, true>(row, wide_gamma, wide);
        for (; row < rows; ++row) block.template operator()<1, true>(row, wide_gamma, wide);
        return;
      }
    }
    for (; row < rows; ++row) block.template operator()<1, false>(row, gamma, nullptr);
  });
}

// Sets to[j] to the sum of element j of `count` arrays, which are in the order of WholeTwo and `stride` apart.
template <class T>
void sum_parts(const float* parts, int64_t count, int64_t stride, float* to, int64_t width) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    const int64_t twos = width / (2 * lanes) * (2 * lanes);
    for (int64_t j = 0; j < width; ++j) {
      const float* part = parts + (j < twos ? WholeTwo<lanes, T>::place(j) : j);
      to[j] = 0;
      for (int64_t i = 0; i < count; ++i) to[j] += part[i * stride];
    }
  });
}

// Calls f(first, count) for a chunk of rows; with `added` for groups of rows whose four tensors fit in 24 KiB of the
// first-level cache.
template <class T, bool added, class F>
void few_rows(const RowChunks& chunks, int64_t chunk, int64_t width, const F& f) {
  const int64_t first = chunks.first(chunk), count = chunks.size(chunk);
  if (!added) return f(first, count);
  const int64_t fit = std::max<int64_t>(1, 24 * 1024 / (4 * width * static_cast<int64_t>(sizeof(T))));
  const int64_t step = fit < kTogether ? fit : fit / kTogether * kTogether;
  for (int64_t done = 0; done < count; done += step) f(first + done, std::min(step, count - done));
}

// Reads: x, the residual if `added`, gamma, beta if `centred`. Writes: y, the sum if `added`, the mean if `centred`,
// the reciprocal.
template <bool centred, bool added, class T>
std::unique_ptr<Kernel> forward(const OpView& view) {
  constexpr size_t kParam = added ? 2 : 1, kStat = kParam + (centred ? 1 : 0);
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  if (added) view.expect_count(view.read(1), rows * width);
  for (size_t i = 0; i < kParam; ++i) view.expect_count(view.write(i), rows * width);
  for (size_t i = kParam; i <= kStat; ++i) {
    view.expect_count(view.read(i), width);
    view.expect_count(view.write(i), rows);
  }
  const Pair<const T> params = {view.in<T>(kParam), centred ? view.in<T>(kStat) : nullptr};
  const Pair<float> stats = {view.out<float>(kStat), centred ? view.out<float>(kParam) : nullptr};
  return kernel_of([x = view.in<T>(0), residual = added ? view.in<T>(1) : nullptr, params, y = view.out<T>(0),
                    sum = added ? view.out<T>(1) : nullptr, stats, rows, width, threads = view.threads(),
                    eps = view.attrs().number("eps", 1e-5)] {
    const RowChunks chunks(rows);
    parallel_for(threads, chunks.count, [&](int64_t i, int) {
      few_rows<T, added>(chunks, i, width, [&](int64_t at, int64_t count) {
        if (added) map_range(kAdd, count * width, sum + at * width, x + at * width, residual + at * width);
        forward_rows<centred>((added ? sum : x) + at * width, params, y + at * width,
                              {stats[0] + at, centred ? stats[1] + at : nullptr}, count, width, eps);
      });
    });
  });
}

template <bool centred>
int64_t workspace(const OpView& view) {
  const Shape& shape = view.read(0).shape;
  return RowChunks(row_count(shape)).count * (centred ? 2 : 1) * last_dim(shape) * static_cast<int64_t>(sizeof(float));
}

// Reads: x, dy, gamma, the mean if `centred`, the reciprocal, the gradient to add if `added`. Writes: dx, dgamma, dbeta
// if `centred`.
template <bool centred, bool added, class T>
std::unique_ptr<Kernel> backward(const OpView& view) {
  constexpr size_t kParams = centred ? 2 : 1, kScale = 2 + kParams;
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  for (size_t i : {size_t{1}, added ? kScale + 1 : 1}) view.expect_count(view.read(i), rows * width);
  view.expect_count(view.read(2), width);
  for (size_t i = 3; i <= kScale; ++i) view.expect_count(view.read(i), rows);
  view.expect_count(view.write(0), rows * width);
  for (size_t i = 1; i <= kParams; ++i) view.expect_count(view.write(i), width);
  const Pair<const float> stats = {view.in<float>(kScale), centred ? view.in<float>(3) : nullptr};
  return kernel_of([x = view.in<T>(0), dy = view.in<T>(1), gamma = view.in<T>(2), stats,
                    other = added ? view.in<T>(kScale + 1) : nullptr, dx = view.out<T>(0),
                    dparams = Pair<float>{view.out<float>(1), centred ? view.out<float>(2) : nullptr}, rows, width,
                    threads = view.threads(), scratch = view.scratch(workspace<centred>(view))] {
    float* sums = reinterpret_cast<float*>(scratch.data);
    const int64_t size = kParams * width;
    const RowChunks chunks(rows);
    parallel_for(threads, chunks.count, [&](int64_t i, int) {
      float* part = sums + i * size;
      std::memset(part, 0, size * sizeof(float));
      few_rows<T, added>(chunks, i, width, [&](int64_t at, int64_t count) {
        T* to = dx + at * width;
        backward_rows<centred>(x + at * width, dy + at * width, gamma,
                               {stats[0] + at, centred ? stats[1] + at : nullptr}, to, part, part + width, count,
                               width);
        if (added) map_range(kAdd, count * width, to, other + at * width, to);
      });
    });
    for (size_t p = 0; p < kParams; ++p) sum_parts<T>(sums + p * width, chunks.count, size, dparams[p], width);
  });
}

}  // namespace

const Family row_norm_kernels = {
    {"layernorm", PRUN_FLOAT_MAKER(read(0), forward<true, false, T>(view))},
    {"layernorm_grad", PRUN_FLOAT_MAKER(read(0), backward<true, false, T>(view)), Accepts::floats, workspace<true>},
    {"add_layernorm", PRUN_FLOAT_MAKER(read(0), forward<true, true, T>(view))},
    {"layernorm_grad_add", PRUN_FLOAT_MAKER(read(0), backward<true, true, T>(view)), Accepts::floats, workspace<true>},
    {"rmsnorm", PRUN_FLOAT_MAKER(read(0), forward<false, false, T>(view))},
    {"rmsnorm_grad", PRUN_FLOAT_MAKER(read(0), backward<false, false, T>(view)), Accepts::floats, workspace<false>},
    {"add_rmsnorm", PRUN_FLOAT_MAKER(read(0), forward<false, true, T>(view))},
    {"rmsnorm_grad_add", PRUN_FLOAT_MAKER(read(0), backward<false, true, T>(view)), Accepts::floats, workspace<false>},
};

}  // namespace prun::cpu
