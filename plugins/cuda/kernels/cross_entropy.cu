// cross_entropy with its softmax fused. The logits are read once: each thread has a running maximum and the sum of
// exponentials relative to it (Milakov, Gimelshein: Online normalizer calculation for softmax, 2018). Only the
// log-sum-exp is stored, no probabilities. The gradient serves vocabularies that are split over ranks too, whose loss
// is in split_cross_entropy.cu.
//
// In cross_entropy_and_grad a block continues with its row's gradient, from the end of the row: the part that was read
// last is still in the L2 cache, and written data leaves it first. A vocabulary of 50304 in bf16 has rows of 98 KiB, so
// few large blocks share a multiprocessor: two of 512 threads, limited by their registers, so that an H100's cache
// holds the parts of their rows that are read again. (llm.c's fused classifier does likewise.)
//
// In bf16, memory delivers eleven logits per clock to each multiprocessor, so a logit may cost twelve instructions:
// __expf, whose error of some ULP only affects negligible terms.
#include "launch.h"
#include "sums.h"
#include "vocabulary.cuh"

namespace prun::cuda {
namespace {

// Returns the row's log-sum-exp, in every thread of its block.
template <class T>
__device__ __forceinline__ float log_sum_exp_of(const T* from, const Columns& columns) {
  Normalizer mine;
  each_in_row(from, columns.valid, [&](const auto& x) { mine.add(x); });
  const float top = block_max(mine.top), shift = Normalizer::shift(top);
  const float sum = block_sum(mine.sum * __expf(mine.top - shift));
  return top + logf(sum);
}

// Returns the row's contribution to the loss, without the factor of all rows.
__device__ __forceinline__ double part_of(float logit, float lse, int64_t row, int32_t target, const Terms& terms) {
  if (terms.factor(row, target) == 0) return 0;
  return static_cast<double>(terms.share(row)) * (static_cast<double>(lse) - static_cast<double>(logit));
}

// Computes the gradient of a row. A thread writes the elements that it has read, so dlogits may be the logits' memory.
// `packed`: both have the same offset from 16-byte alignment.
template <class T>
__device__ __forceinline__ void gradient_of(const T* from, T* to, int64_t target, float shift, const Columns& columns,
                                            float scale, const Terms& terms, bool packed) {
  const float others = terms.others(columns), own = 1.0f - terms.smoothing + others;
  constexpr int N = kPack<T>;
  const Run run = packed ? run_of(from, columns.valid) : Run{0, 0};
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int64_t rounds = (run.packs + threads - 1) / threads;
#pragma unroll 1
  for (int64_t pack = (rounds - 1) * threads + thread; pack >= 0; pack -= threads) {
    if (pack >= run.packs) continue;  // skips packs beyond the end in the last round
    const Pack<T, N> x = load_pack<N>(from + run.head + pack * N);
    const int64_t ahead = target - run.head - pack * N;
    const int hit = ahead >= 0 && ahead < N ? static_cast<int>(ahead) : -1;
    float dx[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float p = __expf(x.wide(i) - shift);
      dx[i] = scale * (p - (i == hit ? own : others));
    }
    stream_pack(to + run.head + pack * N, narrowed<T, N>(dx));
  }
#pragma unroll 1
  for (int64_t i = thread; i < columns.valid - run.packs * N; i += threads) {  // elements outside the packs
    const int64_t column = i < run.head ? i : i + run.packs * N;
    const float p = __expf(widen(from[column]) - shift);
    to[column] = narrow<T>(scale * (p - (column == target ? own : others)));
  }
#pragma unroll 1
  for (int64_t i = columns.valid + thread; i < columns.count; i += threads) to[i] = narrow<T>(0.0f);
}

// Computes lse[row], and in `parts` the row's contribution to the loss.
template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    log_sum_exp(const T* logits, const int32_t* targets, float* lse, double* parts, Columns columns, Terms terms) {
  const int64_t row = blockIdx.x;
  const T* from = logits + row * columns.count;
  const float shift = log_sum_exp_of(from, columns), logit = smoothed_logit(from, targets[row], columns, terms);
  if (threadIdx.x != 0) return;
  lse[row] = shift;
  parts[row] = part_of(logit, shift, row, targets[row], terms);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    gradient(const T* logits, const int32_t* targets, const float* lse, T* dlogits, Columns columns, Terms terms,
             bool packed) {
  const int64_t row = blockIdx.x, first = row * columns.count;
  gradient_of(logits + first, dlogits + first, columns.find(targets[row]), lse[row], columns,
              terms.factor(row, targets[row]), terms, packed);
}

// Computes lse, loss and gradient. The target's logit is read before its gradient is written, because both may be the
// same memory.
template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    loss_and_gradient(const T* logits, const int32_t* targets, float* lse, double* parts, T* dlogits, Columns columns,
                      Terms terms, bool packed) {
  const int64_t row = blockIdx.x, first = row * columns.count, target = columns.find(targets[row]);
  const float shift = log_sum_exp_of(logits + first, columns),
              logit = smoothed_logit(logits + first, targets[row], columns, terms);
  if (threadIdx.x == 0) {
    lse[row] = shift;
    parts[row] = part_of(logit, shift, row, targets[row], terms);
  }
  __syncthreads();
  gradient_of(logits + first, dlogits + first, target, shift, columns, terms.factor(row, targets[row]), terms, packed);
}

// Returns the columns of an unsplit vocabulary; the last ones may be padding.
Columns whole_columns(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  if (columns.valid != columns.vocab)
    throw Failure(PRUN_EINVAL, "cross_entropy: a split vocabulary has a loss of its own");
  return columns;
}

// Returns whether both pointers have the same offset from 16-byte alignment.
template <class T>
bool lie_alike(const T* a, const T* b) {
  return reinterpret_cast<uintptr_t>(a) % 16 == reinterpret_cast<uintptr_t>(b) % 16;
}

size_t workspace(const OpView& view) { return static_cast<size_t>(view.read(0).shape.rows()) * sizeof(double); }

// Makes the loss, with or without the gradient of the logits.
template <class T, bool kGradient>
std::unique_ptr<Kernel> loss(const OpView& view) {
  const Columns columns = whole_columns(view);
  const int64_t rows = view.read(0).shape.rows();
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), 1);
  view.expect_count(view.write(1), rows);
  if (kGradient) view.expect_count(view.write(2), rows * columns.count);
  const T* logits = view.in<T>(0);
  T* dlogits = kGradient ? view.out<T>(2) : nullptr;
  return kernel_of([logits, dlogits, packed = lie_alike<T>(logits, dlogits), targets = view.in<int32_t>(1),
                    to = view.out<float>(0), lse = view.out<float>(1), parts = scratch(view, workspace(view)), rows,
                    columns, terms = terms_of(view, 2, rows), scale = view.number("scale", 1)](cudaStream_t stream) {
    double* data = static_cast<double*>(parts.data);
    const unsigned blocks = static_cast<unsigned>(rows);
    if (kGradient)
      launch(loss_and_gradient<T>, blocks, row_threads(columns), 0, stream, logits, targets, lse, data, dlogits,
             columns, terms, packed);
    else
      launch(log_sum_exp<T>, blocks, row_threads(columns), 0, stream, logits, targets, lse, data, columns, terms);
    finish_sum(stream, data, rows, scale, to);
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
  return kernel_of([logits, dlogits, packed = lie_alike<T>(logits, dlogits), targets = view.in<int32_t>(1),
                    lse = view.in<float>(2), rows, columns, terms = terms_of(view, 3, rows)](cudaStream_t stream) {
    if (rows == 0) return;
    launch(gradient<T>, static_cast<unsigned>(rows), row_threads(columns), 0, stream, logits, targets, lse, dlogits,
           columns, terms, packed);
  });
}

template <bool kGradient>
std::unique_ptr<Kernel> make_loss(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return loss<T, kGradient>(view); });
}
std::unique_ptr<Kernel> make_gradient(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return backward<T>(view); });
}

const KernelFamily kFamily = {{"cross_entropy", make_loss<false>, workspace},
                              {"cross_entropy_grad", make_gradient},
                              {"cross_entropy_and_grad", make_loss<true>, workspace}};

}  // namespace
}  // namespace prun::cuda
