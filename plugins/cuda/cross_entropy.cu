// cross_entropy with its softmax fused. The logits are read once: each thread keeps the maximum of what it has seen and
// the sum of exponentials relative to it (Milakov, Gimelshein: Online normalizer calculation for softmax, 2018). No
// probabilities are stored, only the log-sum-exp. The gradient serves vocabularies that are split over ranks too, whose
// loss is in split_cross_entropy.cu.
//
// In bf16 memory brings eleven logits a clock to each multiprocessor, so a logit may cost twelve instructions: __expf,
// whose error of some units in the last place only touches terms that weigh nothing.
#include "launch.h"
#include "sums.h"
#include "vocabulary.cuh"

namespace prun_cuda {
namespace {

struct Normalizer {
  static constexpr float kNothing = -std::numeric_limits<float>::infinity();
  float top = kNothing, sum = 0;  // Σ exp(x − top)

  // Logits of −∞ alone leave the maximum at −∞, from which nothing may be subtracted.
  static __device__ __forceinline__ float shift(float top) { return top == kNothing ? 0.0f : top; }

  template <int N>
  __device__ __forceinline__ void add(const float (&x)[N]) {
    float largest = x[0], sums[2] = {};
#pragma unroll
    for (int i = 1; i < N; ++i) largest = fmaxf(largest, x[i]);
    if (largest > top) {
      sum *= __expf(top - largest);
      top = largest;
    }
    const float from = shift(top);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i % 2] += __expf(x[i] - from);
    sum += sums[0] + sums[1];
  }
};

// lse[row], and in `parts` what the row adds to the loss.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    log_sum_exp(const T* logits, const int32_t* targets, float* lse, double* parts, Columns columns) {
  const int64_t row = blockIdx.x;
  const T* from = logits + row * columns.count;
  Normalizer mine;
  each_in_row(from, columns.count, [&](const auto& x) { mine.add(x); });
  const float top = block_max(mine.top), shift = Normalizer::shift(top);
  const float sum = block_sum(mine.sum * __expf(mine.top - shift));
  if (threadIdx.x != 0) return;
  lse[row] = top + logf(sum);
  parts[row] = static_cast<double>(lse[row]) - static_cast<double>(widen(from[columns.find(targets[row])]));
}

// A thread writes what it has read, so dlogits may be the logits' memory. Not `packed`: the two lie differently beside
// aligned addresses.
template <class T>
__global__ void __launch_bounds__(kRowThreads) gradient(const T* logits, const int32_t* targets, const float* lse,
                                                        T* dlogits, Columns columns, float scale, bool packed) {
  constexpr int N = kPack<T>;
  const int64_t row = blockIdx.x;
  const T* from = logits + row * columns.count;
  T* to = dlogits + row * columns.count;
  const float shift = lse[row];
  const int64_t target = columns.find(targets[row]);
  const Run run = packed ? run_of(from, columns.valid) : Run{0, 0};
  const auto* packs = reinterpret_cast<const Pack<T, N>*>(from + run.head);
  auto* results = reinterpret_cast<Pack<T, N>*>(to + run.head);
#pragma unroll 1
  for (int64_t pack = threadIdx.x; pack < run.packs; pack += kRowThreads) {
    const Pack<T, N> x = packs[pack];
    const int64_t ahead = target - run.head - pack * N;
    const int hit = ahead >= 0 && ahead < N ? static_cast<int>(ahead) : -1;
    float dx[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float p = __expf(widen(x.v[i]) - shift);
      dx[i] = scale * (i == hit ? p - 1.0f : p);
    }
    results[pack] = narrowed<T, N>(dx);
  }
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < columns.valid - run.packs * N; i += kRowThreads) {  // beside the packs
    const int64_t column = i < run.head ? i : i + run.packs * N;
    const float p = __expf(widen(from[column]) - shift);
    to[column] = narrow<T>(scale * (column == target ? p - 1.0f : p));
  }
#pragma unroll 1
  for (int64_t i = columns.valid + threadIdx.x; i < columns.count; i += kRowThreads) to[i] = narrow<T>(0.0f);
}

template <class T>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = view.read(0).shape.rows();
  if (columns.valid != columns.count || columns.vocab != columns.count)
    throw Failure(PRUN_EINVAL, "cross_entropy: a split vocabulary has a loss of its own");
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), 1);
  view.expect_count(view.write(1), rows);
  return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), loss = view.out<float>(0),
                    lse = view.out<float>(1), parts = scratch(view, static_cast<size_t>(rows) * sizeof(double)), rows,
                    columns, scale = view.number("scale", 1)](cudaStream_t stream) {
    double* data = static_cast<double*>(parts.data);
    if (rows > 0)
      launch(log_sum_exp<T>, static_cast<unsigned>(rows), kRowThreads, 0, stream, logits, targets, lse, data, columns);
    finish_sum(stream, data, rows, scale, loss);
  });
}

template <class T>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = view.read(0).shape.rows();
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(2), rows);
  view.expect_count(view.write(0), rows * columns.count);
  const T* logits = view.in<T>(0);
  T* dlogits = view.out<T>(0);
  const bool packed = reinterpret_cast<uintptr_t>(logits) % 16 == reinterpret_cast<uintptr_t>(dlogits) % 16;
  return kernel_of([logits, dlogits, packed, targets = view.in<int32_t>(1), lse = view.in<float>(2), rows, columns,
                    scale = static_cast<float>(view.number("scale", 1))](cudaStream_t stream) {
    if (rows == 0) return;
    launch(gradient<T>, static_cast<unsigned>(rows), kRowThreads, 0, stream, logits, targets, lse, dlogits, columns,
           scale, packed);
  });
}

std::unique_ptr<Kernel> make_forward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return forward<T>(view); });
}
std::unique_ptr<Kernel> make_backward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return backward<T>(view); });
}

size_t workspace(const OpView& view) { return static_cast<size_t>(view.read(0).shape.rows()) * sizeof(double); }

constexpr KernelEntry kEntries[] = {{"cross_entropy", make_forward, workspace}, {"cross_entropy_grad", make_backward}};

}  // namespace

std::span<const KernelEntry> cross_entropy_kernels() { return kEntries; }

}  // namespace prun_cuda
