// Which row of a table a token has, and the gradient of a table of positions; for embedding, positions and their
// gradients.
//
// A token outside [0, vocab) is clamped: the data ops have refused it before (exec's next_batch), and nothing may be
// read or written out of bounds whatever a plan feeds in. Of a table that is split over an axis the rank holds a run of
// rows; a token outside them is another rank's, gives zeros here and takes no gradient.
#pragma once
#include <algorithm>
#include <limits>

#include "op.h"

namespace prun::cuda {

// The row of a token; kernels take it by value.
struct TokenRow {
  const int32_t* tokens;
  int64_t first, vocab;  // the rank's rows of the table: `vocab` of them from `first` on, then padding
  bool split;

  // Row of token i in this rank's table, -1 for another rank's.
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

// positions.cu: enqueues dtable[p] = Σ over the samples, in their order, of dy's token at position p; 0 where this rank
// has none. dy is [batch, length, width], dtable [rows, width].
template <class T>
void sum_over_samples(const T* dy, float* dtable, int64_t batch, int64_t rows, int64_t width, const TokenPositions& at,
                      cudaStream_t stream);

}  // namespace prun::cuda
