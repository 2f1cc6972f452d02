// The row of a token in a table, and the gradient of a table of positions; for embedding, positions and their
// gradients.
//
// A token outside [0, vocab) is clamped: the data ops reject it earlier (exec's next_batch), and no plan may cause an
// access out of bounds. If a table is split over an axis, a rank has a run of rows; a token outside it belongs to
// another rank, so here its embedding is zero and it contributes no gradient.
#pragma once
#include <algorithm>
#include <limits>

#include "op.h"

namespace prun::cuda {

// Maps a token to its row; kernels receive it by value.
struct TokenRow {
  const int32_t* tokens;
  int64_t first, vocab;  // the rank's rows of the table: `vocab` of them from `first` on, then padding
  bool split;

  // Returns the row of token i in this rank's table, -1 if it is another rank's.
  __device__ int32_t operator()(int64_t i) const {
    const int64_t row = tokens[i] - first;
    const int64_t inside = row < 0 ? 0 : row >= vocab ? vocab - 1 : row;
    return split && inside != row ? -1 : static_cast<int32_t>(inside);
  }
};

inline TokenRow token_row(const OpView& view, const Shape& table) {
  const int64_t rows = table.rows(), count = view.read(0).count();
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  view.expect(rows > 0 && rows <= kMost && count <= kMost, "a table " + shape_text(table));
  const Share share = view.share("axis");
  const int64_t first = share.index * rows, valid = view.integer("valid", share.of * rows);
  return {view.in<int32_t>(0), first, std::clamp<int64_t>(valid - first, 0, rows), !view.text("axis").empty()};
}

// positions.cu: enqueues dtable[p] = Σ over the samples, in their order, of dy's token at position p; 0 if this rank
// has none. dy is [batch, length, width], dtable [rows, width].
template <class T>
void sum_over_samples(const T* dy, float* dtable, int64_t batch, int64_t rows, int64_t width, const TokenPositions& at,
                      cudaStream_t stream);

}  // namespace prun::cuda
