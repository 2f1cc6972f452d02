// pooling and pooling_grad, a channel of a sample at a time. The gradient of a maximum goes to the first largest
// element of the window, which is found again in x.
#include <cmath>

#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/windows.h"

namespace prun::cpu {
namespace {

struct Pool {
  Windows s;
  int64_t channels = 1;  // of all samples
  bool largest = false, counts_padding = true;
  int threads = 1;
};

Pool pool_of(const OpView& view, const Tensor& x, const Tensor& y) {
  Pool pool;
  pool.s = windows_of(view, x.shape, y.shape, view.attrs().numbers("kernel"));
  pool.channels = x.shape[0] * x.shape[1];
  pool.largest = view.attrs().text("op") == "max";
  pool.counts_padding = view.attrs().integer("count_padding", 1) != 0;
  pool.threads = x.count() < 16384 ? 1 : view.threads();
  return pool;
}

// The taps of a window that are inside the image, and its first element.
struct Taps {
  int64_t first, end, at;
  Taps(const WindowDim& dim, int64_t result) : first(0), end(dim.kernel), at(dim.at(result, 0)) {
    if (at < 0) first = std::min(end, (-at + dim.dilation - 1) / dim.dilation);
    if (at + (end - 1) * dim.dilation >= dim.x) end = std::max(first, (dim.x - at + dim.dilation - 1) / dim.dilation);
  }
  int64_t count() const { return end - first; }
};

// Calls f(i, rows, columns) for each window i of a channel.
template <class F>
void each_window(const Windows& s, const F& f) {
  int64_t i = 0;
  for (int64_t row = 0; row < s.dims[0].y; ++row) {
    const Taps rows(s.dims[0], row);
    for (int64_t column = 0; column < s.dims[1].y; ++column, ++i) f(i, rows, Taps(s.dims[1], column));
  }
}
// Calls f(element) for each element of a window in order.
template <class F>
PRUN_INLINE void each_element(const Windows& s, const Taps& rows, const Taps& columns, const F& f) {
  for (int64_t a = rows.first; a < rows.end; ++a) {
    const int64_t row = (rows.at + a * s.dims[0].dilation) * s.dims[1].x + columns.at;
    for (int64_t b = columns.first; b < columns.end; ++b) f(row + b * s.dims[1].dilation);
  }
}

template <class T>
PRUN_INLINE int64_t largest_of(const Windows& s, const Taps& rows, const Taps& columns, const T* x) {
  int64_t at = -1;
  float most = 0;
  each_element(s, rows, columns, [&](int64_t i) PRUN_INLINED {
    const float value = load(x[i]);
    if (at >= 0 && !(value > most) && (value == value || most != most)) return;
    at = i, most = value;
  });
  return at;
}

PRUN_INLINE float share_of(const Pool& pool, const Taps& rows, const Taps& columns) {
  return 1.0f / static_cast<float>(pool.counts_padding ? pool.s.taps() : rows.count() * columns.count());
}

template <class T>
std::unique_ptr<Kernel> pool(const OpView& view) {
  const Pool pool = pool_of(view, view.read(0), view.write(0));
  return kernel_of([pool, x = view.in<T>(0), y = view.out<T>(0)] {
    const Windows& s = pool.s;
    parallel_for(pool.threads, pool.channels, [&](int64_t channel, int) {
      const T* image = x + channel * s.inputs();
      T* to = y + channel * s.results();
      each_window(s, [&](int64_t i, const Taps& rows, const Taps& columns) {
        if (pool.largest) {
          to[i] = image[largest_of(s, rows, columns, image)];
          return;
        }
        float sum = 0;
        each_element(s, rows, columns, [&](int64_t at) PRUN_INLINED { sum += load(image[at]); });
        store(to[i], sum * share_of(pool, rows, columns));
      });
    });
  });
}

int64_t grad_workspace(const OpView& view) {
  const bool rounds = view.write(0).dtype != Dtype::f32;
  return rounds ? pool_of(view, view.write(0), view.read(0)).s.inputs() * view.threads() * int64_t{sizeof(float)} : 0;
}

template <class T>
std::unique_ptr<Kernel> pool_grad(const OpView& view) {
  const Pool pool = pool_of(view, view.write(0), view.read(0));
  const T* x = pool.largest ? view.in<T>(1) : nullptr;
  return kernel_of([pool, x, scratch = view.scratch(grad_workspace(view)), dy = view.in<T>(0), dx = view.out<T>(0)] {
    const Windows& s = pool.s;
    parallel_for(pool.threads, pool.channels, [&](int64_t channel, int thread) {
      T* to = dx + channel * s.inputs();
      const T* from = dy + channel * s.results();
      float* sums = nullptr;
      if constexpr (std::is_same_v<T, float>)
        sums = to;
      else
        sums = reinterpret_cast<float*>(scratch.data) + thread * s.inputs();
      std::fill(sums, sums + s.inputs(), 0.0f);
      each_window(s, [&](int64_t i, const Taps& rows, const Taps& columns) {
        const float gradient = load(from[i]);
        if (pool.largest) {
          sums[largest_of(s, rows, columns, x + channel * s.inputs())] += gradient;
          return;
        }
        const float share = gradient * share_of(pool, rows, columns);
        each_element(s, rows, columns, [&](int64_t at) PRUN_INLINED { sums[at] += share; });
      });
      if constexpr (!std::is_same_v<T, float>)
        for (int64_t i = 0; i < s.inputs(); ++i) store(to[i], sums[i]);
    });
  });
}

}  // namespace

const Family pooling_kernels = {
    {"pooling", PRUN_FLOAT_MAKER(read(0), pool<T>(view))},
    {"pooling_grad", PRUN_FLOAT_MAKER(read(0), pool_grad<T>(view)), Accepts::floats, grad_workspace}};

}  // namespace prun::cpu
