// embedding and its gradient. The gradient adds rows in the order of tokens within each slice of columns, so it is
// bitwise identical in every run and on any number of threads.
//
// A token outside the table ends the job in the forward pass. If the table is split over an axis, a rank has a range of
// rows; a token outside it belongs to another rank, so here its embedding is zero and it contributes no gradient.
#include <cstring>

#include "device/ids.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace prun::cpu {
namespace {

// The rank's rows of the table: `vocab` of them from `first` on.
struct Rows {
  int64_t first, vocab;
  int64_t all;  // rows of the whole table, without padding
};
Rows rows_of(const OpView& view, const Tensor& table) {
  const int64_t vocab = row_count(table.shape);
  PRUN_CHECK(vocab > 0, shape_text(table.shape));
  const Share share = view.share("axis");
  return {share.index * vocab, vocab, view.attrs().integer("valid", share.of * vocab)};
}

// Returns the row of a token, or -1 if it is another rank's.
PRUN_INLINE int64_t row_of(int32_t token, const Rows& rows) {
  const int64_t row = token - rows.first;
  return row < 0 || row >= rows.vocab ? -1 : row;
}

template <class T>
PRUN_CLONES void gather_rows(const int32_t* tokens, const T* table, const T* positions, T* x, int64_t first,
                             int64_t last, int64_t length, Rows rows, int64_t width) {
  for (int64_t i = first; i < last; ++i) {
    const int64_t row = row_of(tokens[i], rows);
    const T* from = table + row * width;
    T* to = x + i * width;
    if (row < 0) {
      std::fill(to, to + width, T{});
      continue;
    }
    if (positions == nullptr) {
      std::memcpy(to, from, width * sizeof(T));
      continue;
    }
    const T* place = positions + i % length * width;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) store(to[j], load(from[j]) + load(place[j]));
  }
}

PRUN_INLINE void clear_columns(float* to, int64_t rows, int64_t width, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < rows; ++i) std::memset(to + i * width + begin, 0, (end - begin) * sizeof(float));
}
template <class T>
PRUN_INLINE void add_columns(const T* from, float* to, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t j = begin; j < end; ++j) to[j] += load(from[j]);
}

// Accumulates columns [begin, end) of dtable and dpositions.
template <class T>
PRUN_CLONES void scatter_columns(const int32_t* tokens, const T* dy, float* dtable, float* dpositions, int64_t count,
                                 int64_t length, Rows rows, int64_t positions, int64_t width, int64_t begin,
                                 int64_t end) {
  clear_columns(dtable, rows.vocab, width, begin, end);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = row_of(tokens[i], rows);
    if (row >= 0) add_columns(dy + i * width, dtable + row * width, begin, end);
  }
  if (dpositions == nullptr) return;
  clear_columns(dpositions, positions, width, begin, end);
  for (int64_t i = 0; i < count; ++i) add_columns(dy + i * width, dpositions + i % length * width, begin, end);
}

template <class T>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const Tensor &tokens = view.read(0), &table = view.read(1);
  const int64_t width = last_dim(table.shape), count = tokens.count(), length = last_dim(tokens.shape);
  const Rows rows = rows_of(view, table);
  view.expect_count(view.write(0), count * width);
  const T* positions = view.reads() > 2 ? view.in<T>(2) : nullptr;
  if (positions != nullptr) {
    PRUN_CHECK(view.share("axis").of == 1, "positions are added by each rank");
    PRUN_CHECK(row_count(view.read(2).shape) >= length && last_dim(view.read(2).shape) == width,
               shape_text(view.read(2).shape) + " for tokens " + shape_text(tokens.shape));
  }
  return kernel_of([ids = view.in<int32_t>(0), from = view.in<T>(1), positions, x = view.out<T>(0), count, length, rows,
                    width, threads = view.threads()] {
    require_ids(ids, count, rows.all, kTokenOutside);
    parallel_rows(threads, count, [&](int64_t begin, int64_t end) {
      gather_rows(ids, from, positions, x, begin, end, length, rows, width);
    });
  });
}

template <class T>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const Tensor &tokens = view.read(0), &dy = view.read(1), &dtable = view.write(0);
  const int64_t width = last_dim(dtable.shape), count = tokens.count(), length = last_dim(tokens.shape);
  const Rows rows = rows_of(view, dtable);
  view.expect_count(dy, count * width);
  float* dpositions = view.writes() > 1 ? view.out<float>(1) : nullptr;
  const int64_t positions = dpositions != nullptr ? row_count(view.write(1).shape) : 0;
  if (dpositions != nullptr) {
    PRUN_CHECK(positions >= length && last_dim(view.write(1).shape) == width, shape_text(view.write(1).shape));
  }
  return kernel_of([ids = view.in<int32_t>(0), from = view.in<T>(1), to = view.out<float>(0), dpositions, count, length,
                    rows, positions, width, threads = view.threads()] {
    parallel_rows(threads, width, [&](int64_t begin, int64_t end) {
      scatter_columns(ids, from, to, dpositions, count, length, rows, positions, width, begin, end);
    });
  });
}

}  // namespace

const Family embedding_kernels = {{"embedding", PRUN_FLOAT_MAKER(read(1), forward<T>(view))},
                                  {"embedding_grad", PRUN_FLOAT_MAKER(read(1), backward<T>(view))}};

}  // namespace prun::cpu
