// layernorm and rmsnorm over the last dim, and their gradients; f32 inside, a variance from centred values.
//
// The gradients' sums over rows (dgamma, dbeta) are cut into chunks by the number of rows alone and added in chunk
// order, so they have the same bits on any number of threads. The forms that take the add of a residual in run the two
// ops in turn on a few rows at a time, which stay in the fastest cache: so they have the bits of the two ops apart, and
// memory sees one pass.
#include <array>
#include <cmath>
#include <cstring>

#include "device/cpu/elementwise.h"
#include "device/cpu/vectors.h"

namespace prun::cpu {
namespace {

// Pairs of which rmsnorm has only the first: the parameters gamma and beta, their gradients, statistics of rows.
template <class T>
using Pair = std::array<T*, 2>;

// n rows; their sums are folded, divided and made roots of together, as each takes long and waits for the one before.
// What is computed of a row does not depend on n.
//
// stats: the reciprocal of the standard deviation and the mean; for rmsnorm the reciprocal of the root mean square.
template <bool centred, int n, int lanes, class T>
PRUN_INLINE void forward_block(const T* x, Pair<const T> params, T* y, Pair<float> stats, int64_t width, float eps) {
  float centre[n] = {}, scale[n];
  Floats<lanes> sums[n];
  if constexpr (centred) {
    for (int r = 0; r < n; ++r) {
      Two<lanes> sum = {};
      for_two_lanes<lanes, T>(width, [&](auto at) PRUN_INLINED { sum += at.load(x + r * width); });
      sums[r] = sum.v[0] + sum.v[1];
    }
    for (int r = 0; r < n; ++r) stats[1][r] = centre[r] = fold<lanes>(sums[r], kAdd) / static_cast<float>(width);
  }
  for (int r = 0; r < n; ++r) {
    Two<lanes> squares = {};
    for_two_lanes<lanes, T>(width, [&, middle = centre[r]](auto at) PRUN_INLINED {
      ask_for<2 * lanes>(x + (n + r) * width + at.i);  // the next rows
      const auto d = at.only(at.load(x + r * width) - middle);
      squares += d * d;
    });
    sums[r] = squares.v[0] + squares.v[1];
  }
  for (int r = 0; r < n; ++r) {
    const float mean = fold<lanes>(sums[r], kAdd) / static_cast<float>(width);
    stats[0][r] = scale[r] = 1.0f / std::sqrt(mean + eps);
  }
  for (int r = 0; r < n; ++r) {
    for_two_lanes<lanes, T>(width, [=, middle = centre[r], factor = scale[r]](auto at) PRUN_INLINED {
      const auto normal = (at.load(x + r * width) - middle) * factor * at.load(params[0]);
      if constexpr (centred)
        at.store(y + r * width, normal + at.load(params[1]));
      else
        at.store(y + r * width, normal);
    });
  }
}

// Four rows of bf16 at a time, unless they are too long for the first-level cache. Those of f32 take longer to come
// and go than to compute: with four at a time memory pauses.
template <bool centred, class T>
void forward_rows(const T* x, Pair<const T> params, T* y, Pair<float> stats, int64_t rows, int64_t width, float eps) {
  constexpr int64_t kCache = 24 * 1024;
  constexpr int kTogether = std::is_same_v<T, bf16> ? 4 : 1;
  with_lanes([=]<int lanes>() PRUN_INLINED {
    const auto block = [=]<int n>(int64_t row) PRUN_INLINED {
      forward_block<centred, n, lanes>(x + row * width, params, y + row * width,
                                       {stats[0] + row, centred ? stats[1] + row : nullptr}, width, eps);
    };
    int64_t row = 0;
    if (kTogether > 1 && 2 * kTogether * width * static_cast<int64_t>(sizeof(T)) <= kCache)
      for (; row + kTogether <= rows; row += kTogether) block.template operator()<kTogether>(row);
    for (; row < rows; ++row) block.template operator()<1>(row);
  });
}

// dx of some rows; adds their part of dgamma and, of a layernorm, of dbeta, which lie as WholeTwo says.
template <bool centred, class T>
void backward_rows(const T* x, const T* dy, const T* gamma, Pair<const float> stats, T* dx, float* dgamma, float* dbeta,
                   int64_t rows, int64_t width) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    for (int64_t row = 0; row < rows; ++row) {
      const T *xr = x + row * width, *gr = dy + row * width;
      T* to = dx + row * width;
      const float scale = stats[0][row], centre = centred ? stats[1][row] : 0;
      Floats<lanes> products = {}, weights = {};  // sums of g·γ·x̂ and, of a layernorm, of g·γ
      for_two_lanes<lanes, T>(width, [=, &products, &weights](auto at) PRUN_INLINED {
        const auto normal = (at.load(xr) - centre) * scale, g = at.load(gr), weighted = g * at.load(gamma);
        products += at.only(weighted * normal);
        at.store(dgamma, g * normal + at.load(dgamma));
        if constexpr (centred) {
          weights += weighted;
          at.store(dbeta, g + at.load(dbeta));
        } else {
          static_cast<void>(weights);
        }
      });
      const float along = fold<lanes>(products, kAdd) / static_cast<float>(width) * scale;
      const float through = centred ? fold<lanes>(weights, kAdd) / static_cast<float>(width) * scale : 0;
      for_two_lanes<lanes, T>(width, [=](auto at) PRUN_INLINED {
        ask_for<2 * lanes>(xr + width + at.i);
        ask_for<2 * lanes>(gr + width + at.i);
        const auto normal = (at.load(xr) - centre) * scale;
        at.store(to, at.load(gr) * at.load(gamma) * scale - (normal * along + through));
      });
    }
  });
}

// to[j] is the sum of element j of `count` arrays, which lie as WholeTwo says and `stride` apart.
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

// f(first, count) over a chunk of rows; with `added` over as many at a time as a cache of 32 KiB holds of four tensors.
template <class T, bool added, class F>
void few_rows(const RowChunks& chunks, int64_t chunk, int64_t width, const F& f) {
  const int64_t first = chunks.first(chunk), count = chunks.size(chunk);
  if (!added) return f(first, count);
  const int64_t step = std::max<int64_t>(1, 24 * 1024 / (4 * width * static_cast<int64_t>(sizeof(T))));
  for (int64_t done = 0; done < count; done += step) f(first + done, std::min(step, count - done));
}

// Reads: x, the residual that is added, gamma, beta. Writes: y, the sum, the mean, the reciprocal.
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
                    eps = static_cast<float>(view.attrs().number("eps", 1e-5))] {
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

// Reads: x, dy, gamma, the mean, the reciprocal, the gradient that is added. Writes: dx, dgamma, dbeta.
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
