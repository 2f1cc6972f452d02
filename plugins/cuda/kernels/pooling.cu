// pooling and pooling_grad: a thread computes one element of its result. The gradient of a maximum goes to the first
// largest element of the window, which each element of the window finds again.
#include "block.cuh"
#include "convolution.cuh"
#include "launch.h"
#include "windows.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct Pool {
  sdk::Windows s;
  int64_t channels = 1;  // of all samples
  bool largest = false, counts_padding = true;

  // Returns the elements that result `at` of a mean divides by.
  __device__ float divisor(int64_t at) const {
    if (counts_padding) return static_cast<float>(s.taps());
    int64_t count = 0;
    for (int64_t tap = 0; tap < s.taps(); ++tap) count += input_at(s, at, tap) >= 0 ? 1 : 0;
    return static_cast<float>(count);
  }
};

// Returns the first largest element of the window of result `at`; a NaN is larger than all numbers.
template <class T>
__device__ int64_t largest_of(const sdk::Windows& s, const T* image, int64_t at) {
  int64_t found = -1;
  float most = 0;
  for (int64_t tap = 0; tap < s.taps(); ++tap) {
    const int64_t from = input_at(s, at, tap);
    if (from < 0) continue;
    const float value = widen(image[from]);
    if (found >= 0 && !(value > most) && (value == value || most != most)) continue;
    found = from, most = value;
  }
  return found;
}

template <class T>
__global__ void pool_windows(const T* x, T* y, Pool pool) {
  const int64_t results = pool.s.results();
  for (int64_t i = first_item(); i < pool.channels * results; i += item_stride()) {
    const T* image = x + i / results * pool.s.inputs();
    if (pool.largest) {
      y[i] = image[largest_of(pool.s, image, i % results)];
      continue;
    }
    float sum = 0;
    for (int64_t tap = 0; tap < pool.s.taps(); ++tap) {
      const int64_t from = input_at(pool.s, i % results, tap);
      if (from >= 0) sum += widen(image[from]);
    }
    y[i] = narrow<T>(sum / pool.divisor(i % results));
  }
}

template <class T>
__global__ void pool_windows_grad(const T* dy, const T* x, T* dx, Pool pool) {
  const int64_t inputs = pool.s.inputs();
  for (int64_t i = first_item(); i < pool.channels * inputs; i += item_stride()) {
    const int64_t channel = i / inputs;
    float sum = 0;
    for (int64_t tap = 0; tap < pool.s.taps(); ++tap) {
      const int64_t result = result_at(pool.s, i % inputs, tap);
      if (result < 0) continue;
      if (pool.largest && largest_of(pool.s, x + channel * inputs, result) != i % inputs) continue;
      const float gradient = widen(dy[channel * pool.s.results() + result]);
      sum += pool.largest ? gradient : gradient / pool.divisor(result);
    }
    dx[i] = narrow<T>(sum);
  }
}

Pool pool_of(const OpView& view, const Tensor& x, const Tensor& y) {
  Pool pool;
  pool.s = windows_of(view, x.shape, y.shape, view.numbers("kernel"));
  pool.channels = x.shape[0] * x.shape[1];
  pool.largest = view.text("op") == "max";
  pool.counts_padding = view.integer("count_padding", 1) != 0;
  return pool;
}

std::unique_ptr<Kernel> make_pool(const OpView& view) {
  const Pool pool = pool_of(view, view.read(0), view.write(0));
  return with_float(view.read(0).dtype, [&]<class T>() {
    return kernel_of([pool, x = view.in<T>(0), y = view.out<T>(0)](cudaStream_t stream) {
      launch(pool_windows<T>, blocks_for(pool.channels * pool.s.results(), kThreads), kThreads, 0, stream, x, y, pool);
    });
  });
}

std::unique_ptr<Kernel> make_pool_grad(const OpView& view) {
  const Pool pool = pool_of(view, view.write(0), view.read(0));
  return with_float(view.read(0).dtype, [&]<class T>() {
    const T* x = pool.largest ? view.in<T>(1) : nullptr;
    return kernel_of([pool, dy = view.in<T>(0), x, dx = view.out<T>(0)](cudaStream_t stream) {
      launch(pool_windows_grad<T>, blocks_for(pool.channels * pool.s.inputs(), kThreads), kThreads, 0, stream, dy, x,
             dx, pool);
    });
  });
}

const KernelFamily kFamily = {{"pooling", make_pool}, {"pooling_grad", make_pool_grad}};

}  // namespace
}  // namespace prun::cuda
