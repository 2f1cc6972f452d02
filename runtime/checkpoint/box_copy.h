// Copies between boxes of tensors in memory.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "ir/state.h"

namespace prun::checkpoint {

// Elements first, ..., first + count - 1 of the box in row-major order, side by side into `to`. `from`: the tensor
// that the box lies in; `size`: bytes of an element.
inline void gather_elements(const Box& box, int64_t size, const std::byte* from, int64_t first, int64_t count,
                            std::byte* to) {
  const int dims = std::ssize(box.shape);
  // The last dims that lie side by side in memory are copied at once.
  int64_t run = 1;
  int outer = dims;
  while (outer > 0 && box.strides[outer - 1] == run) run *= box.shape[--outer];
  while (count > 0) {
    const int64_t within = first % run, n = std::min(count, run - within);
    int64_t row = first / run, at = box.first + within;
    for (int d = outer; d-- > 0; row /= box.shape[d]) at += row % box.shape[d] * box.strides[d];
    std::memcpy(to, from + at * size, n * size);
    to += n * size;
    first += n;
    count -= n;
  }
}

}  // namespace prun::checkpoint
