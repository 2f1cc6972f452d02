// embedding and its gradient. The gradient adds rows in token order within each slice of columns, so it has the same
// bits in every run and on any number of threads.
//
// A token outside [0, vocab) is clamped: the data ops have refused it before (exec's next_batch), and nothing may be
// read or written out of bounds whatever a plan feeds in.
#include <cstring>

#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"

namespace prun::cpu {
namespace {

PRUN_INLINE int64_t row_of(int32_t token, int64_t vocab) {
  return token < 0 ? 0 : (token >= vocab ? vocab - 1 : token);
}

template <class T>
PRUN_CLONES void gather_rows(const int32_t* tokens, const T* table, const T* positions, T* x, int64_t first,
                             int64_t last, int64_t length, int64_t vocab, int64_t width) {
  for (int64_t i = first; i < last; ++i) {
    const T* from = table + row_of(tokens[i], vocab) * width;
    T* to = x + i * width;
    if (positions == nullptr) {
      std::memcpy(to, from, static_cast<size_t>(width) * sizeof(T));
      continue;
    }
    const T* place = positions + i % length * width;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) store(to[j], load(from[j]) + load(place[j]));
  }
}

// Columns [begin, end) of dtable and dpositions.
template <class T>
PRUN_CLONES void scatter_columns(const int32_t* tokens, const T* dy, float* dtable, float* dpositions, int64_t count,
                                 int64_t length, int64_t vocab, int64_t positions, int64_t width, int64_t begin,
                                 int64_t end) {
  for (int64_t i = 0; i < vocab; ++i)
    std::memset(dtable + i * width + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    const T* from = dy + i * width;
    float* to = dtable + row_of(tokens[i], vocab) * width;
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) to[j] += load(from[j]);
  }
  if (dpositions == nullptr) return;
  for (int64_t i = 0; i < positions; ++i)
    std::memset(dpositions + i * width + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    const T* from = dy + i * width;
    float* to = dpositions + i % length * width;
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) to[j] += load(from[j]);
  }
}

template <class T>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const Tensor &tokens = view.read(0), &table = view.read(1);
  const int64_t width = last_dim(table.shape), vocab = row_count(table.shape), count = tokens.count();
  const int64_t length = last_dim(tokens.shape);
  PRUN_CHECK(vocab > 0, shape_text(table.shape));
  view.expect_count(view.write(0), count * width);
  const T* positions = view.reads() > 2 ? view.in<T>(2) : nullptr;
  if (positions != nullptr) {
    PRUN_CHECK(row_count(view.read(2).shape) >= length && last_dim(view.read(2).shape) == width,
               shape_text(view.read(2).shape) + " for tokens " + shape_text(tokens.shape));
  }
  return kernel_of([ids = view.in<int32_t>(0), from = view.in<T>(1), positions, x = view.out<T>(0), count, length,
                    vocab, width, threads = view.threads()] {
    parallel_for(threads, threads, [&](int64_t i, int) {
      gather_rows(ids, from, positions, x, count * i / threads, count * (i + 1) / threads, length, vocab, width);
    });
  });
}

template <class T>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const Tensor &tokens = view.read(0), &dy = view.read(1), &dtable = view.write(0);
  const int64_t width = last_dim(dtable.shape), vocab = row_count(dtable.shape), count = tokens.count();
  const int64_t length = last_dim(tokens.shape);
  PRUN_CHECK(vocab > 0, shape_text(dtable.shape));
  view.expect_count(dy, count * width);
  float* dpositions = view.writes() > 1 ? view.out<float>(1) : nullptr;
  const int64_t positions = dpositions != nullptr ? row_count(view.write(1).shape) : 0;
  if (dpositions != nullptr) {
    PRUN_CHECK(positions >= length && last_dim(view.write(1).shape) == width, shape_text(view.write(1).shape));
  }
  return kernel_of([ids = view.in<int32_t>(0), from = view.in<T>(1), to = view.out<float>(0), dpositions, count, length,
                    vocab, positions, width, threads = view.threads()] {
    parallel_for(threads, threads, [&](int64_t i, int) {
      scatter_columns(ids, from, to, dpositions, count, length, vocab, positions, width, width * i / threads,
                      width * (i + 1) / threads);
    });
  });
}

std::unique_ptr<Kernel> make_forward(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return forward<T>(view); });
}
std::unique_ptr<Kernel> make_backward(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return backward<T>(view); });
}

constexpr KernelEntry kEntries[] = {{"embedding", make_forward}, {"embedding_grad", make_backward}};

}  // namespace

std::span<const KernelEntry> embedding_kernels() { return kEntries; }

}  // namespace prun::cpu
