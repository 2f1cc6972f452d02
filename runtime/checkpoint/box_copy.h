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
  const int dims = static_cast<int>(std::ssize(box.shape));
  // The last dims that lie side by side in memory are copied at once.
  int64_t run = 1;
  int outer = dims;
  while (outer > 0 && box.strides[outer - 1] == run) run *= box.shape[--outer];
  while (count > 0) {
    const int64_t within = first % run, n = std::min(count, run - within);
    int64_t row = first / run, at = box.first + within;
    for (int d = outer; d-- > 0; row /= box.shape[d]) at += row % box.shape[d] * box.strides[d];
    std::memcpy(to, from + at * size, static_cast<size_t>(n * size));
    to += n * size;
    first += n;
    count -= n;
  }
}

// What a piece of a file and a box have in common, from the piece's data into the tensor of the box; returns how
// many elements that were.
inline int64_t copy_common(const Shape& piece_offset, const Shape& piece_shape, const std::byte* piece, const Box& box,
                           int64_t size, std::byte* tensor) {
  Box common = box, source{piece_offset, piece_shape, 0, Shape(piece_shape.size(), 1)};
  for (size_t d = piece_shape.size(); d-- > 1;) source.strides[d - 1] = source.strides[d] * piece_shape[d];
  for (size_t d = 0; d < piece_shape.size(); ++d) {
    const int64_t begin = std::max(box.offset[d], piece_offset[d]),
                  end = std::min(box.offset[d] + box.shape[d], piece_offset[d] + piece_shape[d]);
    if (begin >= end) return 0;
    common.first += (begin - box.offset[d]) * box.strides[d];
    source.first += (begin - piece_offset[d]) * source.strides[d];
    common.shape[d] = source.shape[d] = end - begin;
  }
  const int last = static_cast<int>(std::ssize(common.shape)) - 1;
  const int64_t run = last < 0 ? 1 : common.shape[last], all = common.elements();
  for (int64_t first = 0; first < all; first += run) {
    int64_t row = first / run, to = common.first, from = source.first;
    for (int d = last; d-- > 0; row /= common.shape[d]) {
      to += row % common.shape[d] * common.strides[d];
      from += row % common.shape[d] * source.strides[d];
    }
    std::memcpy(tensor + to * size, piece + from * size, static_cast<size_t>(run * size));
  }
  return all;
}

}  // namespace prun::checkpoint
