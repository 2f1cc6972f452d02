// pooling and pooling_grad: a thread computes one element of its result. The gradient of a maximum goes to the first
// largest element of the window, which each element of the window finds again.
#include "block.cuh"
#include "launch.h"
#include "window_frame.cuh"
#include "windows.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct Pool {
  Frame frame;
  int64_t channels = 1;  // of all samples
  bool largest = false, counts_padding = true;

  // Returns the elements that a mean divides by.
  __device__ float divisor(int row, int column) const {
    if (counts_padding) return static_cast<float>(frame.taps);
    return static_cast<float>(frame.rows.inputs_of(row) * frame.columns.inputs_of(column));
  }
};

// Returns the index of the first largest element in a result's window; a NaN is larger than all numbers.
template <class T>
__device__ int largest_of(const Frame& f, const T* image, int row, int column) {
  int found = -1;
  float most = 0;
  for (int tap_row = 0; tap_row < f.rows.kernel; ++tap_row) {
    const int in_row = f.rows.at(row, tap_row);
    if (!f.rows.inside(in_row)) continue;
    for (int tap = 0; tap < f.columns.kernel; ++tap) {
      const int in_column = f.columns.at(column, tap), from = in_row * f.columns.x + in_column;
      if (!f.columns.inside(in_column)) continue;
      const float value = widen(image[from]);
      if (found >= 0 && !(value > most) && (value == value || most != most)) continue;
      found = from, most = value;
    }
  }
  return found;
}

template <class T>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks) pool_windows(const T* x, T* y, Pool pool) {
  const Frame& f = pool.frame;
  for (int64_t i = first_item(); i < pool.channels * f.results; i += item_stride()) {
    const Place at = f.result_at(i);
    const T* image = x + at.channel * f.inputs;
    if (pool.largest) {
      y[i] = image[largest_of(f, image, at.row, at.column)];
      continue;
    }
    float sum = 0;
    for (int tap_row = 0; tap_row < f.rows.kernel; ++tap_row) {
      const int in_row = f.rows.at(at.row, tap_row);
      if (!f.rows.inside(in_row)) continue;
      for (int tap = 0; tap < f.columns.kernel; ++tap) {
        const int in_column = f.columns.at(at.column, tap);
        if (f.columns.inside(in_column)) sum += widen(image[in_row * f.columns.x + in_column]);
      }
    }
    y[i] = narrow<T>(sum / pool.divisor(at.row, at.column));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    pool_windows_grad(const T* dy, const T* x, T* dx, Pool pool) {
  const Frame& f = pool.frame;
  for (int64_t i = first_item(); i < pool.channels * f.inputs; i += item_stride()) {
    const Place at = f.input_at(i);
    float sum = 0;
    for (int tap_row = 0; tap_row < f.rows.kernel; ++tap_row) {
      const int result_row = f.rows.result(at.row, tap_row);
      if (result_row < 0) continue;
      for (int tap = 0; tap < f.columns.kernel; ++tap) {
        const int result_column = f.columns.result(at.column, tap);
        if (result_column < 0) continue;
        if (pool.largest && largest_of(f, x + at.channel * f.inputs, result_row, result_column) != at.index) continue;
        const float gradient = widen(dy[at.channel * f.results + result_row * f.columns.y + result_column]);
        sum += pool.largest ? gradient : gradient / pool.divisor(result_row, result_column);
      }
    }
    dx[i] = narrow<T>(sum);
  }
}

Pool pool_of(const OpView& view, const Tensor& x, const Tensor& y) {
  Pool pool;
  pool.frame = frame_of(windows_of(view, x.shape, y.shape, view.numbers("kernel")));
  pool.channels = x.shape[0] * x.shape[1];
  pool.largest = view.text("op") == "max";
  pool.counts_padding = view.integer("count_padding", 1) != 0;
  return pool;
}

std::unique_ptr<Kernel> make_pool(const OpView& view) {
  const Pool pool = pool_of(view, view.read(0), view.write(0));
  return with_float(view.read(0).dtype, [&]<class T>() {
    return kernel_of([pool, x = view.in<T>(0), y = view.out<T>(0)](cudaStream_t stream) {
      launch(pool_windows<T>, blocks_for(pool.channels * pool.frame.results, kThreads), kThreads, 0, stream, x, y,
             pool);
    });
  });
}

std::unique_ptr<Kernel> make_pool_grad(const OpView& view) {
  const Pool pool = pool_of(view, view.write(0), view.read(0));
  return with_float(view.read(0).dtype, [&]<class T>() {
    const T* x = pool.largest ? view.in<T>(1) : nullptr;
    return kernel_of([pool, dy = view.in<T>(0), x, dx = view.out<T>(0)](cudaStream_t stream) {
      launch(pool_windows_grad<T>, blocks_for(pool.channels * pool.frame.inputs, kThreads), kThreads, 0, stream, dy, x,
             dx, pool);
    });
  });
}

const KernelFamily kFamily = {{"pooling", make_pool}, {"pooling_grad", make_pool_grad}};

}  // namespace
}  // namespace prun::cuda
