// The losses that are reductions over elements: mse, mean_square, mean, and their gradients. They accumulate in f64, in
// parts whose order depends on the size only.
#include <algorithm>

#include "pointwise.cuh"
#include "sums.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct SquaredDifference {
  __device__ double operator()(const double* x) const { return (x[0] - x[1]) * (x[0] - x[1]); }
};
struct Square {
  __device__ double operator()(const double* x) const { return x[0] * x[0]; }
};
struct Element {
  __device__ double operator()(const double* x) const { return x[0]; }
};

template <class T, int kIn>
struct Inputs {
  const T* data[kIn];
};

// Computes parts[block] = Σ f over every gridDim.x-th run of packs. `packs` is 0 if pointers are not aligned.
template <class T, int kIn, class F>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    sum_elements(Inputs<T, kIn> inputs, int64_t count, int64_t packs, double* parts, F f) {
  constexpr int N = kPack<T>;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x, threads = int64_t{gridDim.x} * kThreads;
  double sum = 0, x[kIn];
  for (int64_t first = thread; first < packs; first += threads * kAhead<kIn>) {
    Pack<T, N> loaded[kAhead<kIn>][kIn];
#pragma unroll
    for (int step = 0; step < kAhead<kIn>; ++step) {
#pragma unroll
      for (int k = 0; k < kIn; ++k)
        if (const int64_t pack = first + step * threads; pack < packs)
          loaded[step][k] = load_pack<N>(inputs.data[k] + pack * N);
    }
#pragma unroll
    for (int step = 0; step < kAhead<kIn>; ++step) {
      if (first + step * threads >= packs) break;
#pragma unroll
      for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int k = 0; k < kIn; ++k) x[k] = static_cast<double>(loaded[step][k].wide(i));
        sum += f(x);
      }
    }
  }
#pragma unroll 1
  for (int64_t i = packs * N + thread; i < count; i += threads) {
#pragma unroll
    for (int k = 0; k < kIn; ++k) x[k] = static_cast<double>(widen(inputs.data[k][i]));
    sum += f(x);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// Returns the number of parts: blocks of 4096 elements each, until there are enough to fill a large GPU.
int64_t part_count(int64_t elements) { return std::clamp<int64_t>((elements + 4095) / 4096, 1, 1056); }

size_t workspace(const OpView& view) { return static_cast<size_t>(part_count(view.read(0).count())) * sizeof(double); }

double scale_of(const OpView& view) { return view.number("scale", 1); }

template <int kIn, class F>
std::unique_ptr<Kernel> make_sum(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const int64_t count = view.read(0).count(), blocks = part_count(count);
    view.expect_count(view.write(0), 1);
    Inputs<T, kIn> inputs;
    bool packed = true;
    for (int k = 0; k < kIn; ++k) {
      view.expect_count(view.read(k), count);
      inputs.data[k] = view.in<T>(k);
      packed = packed && aligned(inputs.data[k]);
    }
    return kernel_of([inputs, count, blocks, packs = packed ? count / kPack<T> : 0,
                      parts = scratch(view, workspace(view)), loss = view.out<float>(0),
                      scale = scale_of(view)](cudaStream_t stream) {
      double* data = static_cast<double*>(parts.data);
      launch(sum_elements<T, kIn, F>, static_cast<unsigned>(blocks), kThreads, 0, stream, inputs, count, packs, data,
             F{});
      finish_sum(stream, data, blocks, scale, loss);
    });
  });
}

struct ScaledDifference {
  float factor;
  __device__ void operator()(const float* x, float* y) const { y[0] = factor * (x[0] - x[1]); }
};
struct Scaled {
  float factor;
  __device__ void operator()(const float* x, float* y) const { y[0] = factor * x[0]; }
};
// The gradient of a mean. It is the same for every element, so only the shape of y matters.
struct Constant {
  float value;
  __device__ void operator()(const float*, float* y) const { y[0] = value; }
};

template <int kIn, class F>
std::unique_ptr<Kernel> make_grad(const OpView& view, double factor) {
  return with_float(view.write(0).dtype,
                    [&]<class T>() { return pointwise_op<T, kIn, 1>(view, F{static_cast<float>(factor)}); });
}
std::unique_ptr<Kernel> make_mse_grad(const OpView& view) {
  return make_grad<2, ScaledDifference>(view, 2 * scale_of(view));
}
std::unique_ptr<Kernel> make_mean_square_grad(const OpView& view) {
  return make_grad<1, Scaled>(view, 2 * scale_of(view));
}
std::unique_ptr<Kernel> make_mean_grad(const OpView& view) { return make_grad<0, Constant>(view, scale_of(view)); }

const KernelFamily kFamily = {
    {"mse", make_sum<2, SquaredDifference>, workspace}, {"mse_grad", make_mse_grad},
    {"mean_square", make_sum<1, Square>, workspace},    {"mean_square_grad", make_mean_square_grad},
    {"mean", make_sum<1, Element>, workspace},          {"mean_grad", make_mean_grad}};

}  // namespace
}  // namespace prun::cuda
