// Tasks are (outer index, part of the rows or of the run), so that one long run occupies all threads, too.
#include "kernels/cpu/ops/strided_copy.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/parallel.h"

namespace prun::cpu {
namespace {

constexpr int64_t kCopyTile = 32, kCopyPart = 16384;

}  // namespace

StridedCopy::StridedCopy(const std::vector<StridedDim>& dims, int64_t element_bytes) : element_bytes_(element_bytes) {
  PRUN_CHECK(element_bytes == 2 || element_bytes == 4 || element_bytes == 8, std::to_string(element_bytes));
  for (const StridedDim& dim : dims) {
    if (dim.size == 1) continue;
    StridedDim* last = outer_.empty() ? nullptr : &outer_.back();
    if (last != nullptr && last->from == dim.from * dim.size && last->to == dim.to * dim.size)
      *last = {last->size * dim.size, dim.from, dim.to};
    else
      outer_.push_back(dim);
  }
  if (outer_.empty()) return;
  run_ = outer_.back();
  outer_.pop_back();
  if (run_.from == 1) return;
  const auto rows = std::find_if(outer_.begin(), outer_.end(), [](const StridedDim& dim) { return dim.from == 1; });
  if (rows == outer_.end()) return;
  rows_ = *rows;
  outer_.erase(rows);
}

template <class T>
void StridedCopy::copy(int threads, const T* from, T* to) const {
  int64_t outer = 1;
  for (const StridedDim& dim : outer_) outer *= dim.size;
  const bool tiles = rows_.size > 1;
  const int64_t cut = tiles ? rows_.size : run_.size, part = tiles ? kCopyTile : kCopyPart,
                parts = (cut + part - 1) / part;
  const bool small = outer * rows_.size * run_.size < kCopyPart;
  parallel_for(small ? 1 : threads, outer * parts, [&](int64_t task, int) {
    int64_t at = task / parts;
    const T* x = from;
    T* y = to;
    for (auto dim = outer_.rbegin(); dim != outer_.rend(); ++dim) {
      x += at % dim->size * dim->from;
      y += at % dim->size * dim->to;
      at /= dim->size;
    }
    const int64_t begin = task % parts * part, end = std::min(cut, begin + part);
    if (!tiles) {
      if (run_.from == 1 && run_.to == 1)
        std::memcpy(y + begin, x + begin, (end - begin) * sizeof(T));
      else
        for (int64_t i = begin; i < end; ++i) y[i * run_.to] = x[i * run_.from];
      return;
    }
    for (int64_t first = 0; first < run_.size; first += kCopyTile)
      for (int64_t r = begin; r < end; ++r)
        for (int64_t i = first; i < std::min(run_.size, first + kCopyTile); ++i)
          y[r * rows_.to + i * run_.to] = x[r + i * run_.from];
  });
}

void StridedCopy::run(int threads, const std::byte* from, std::byte* to) const {
  if (element_bytes_ == 8)
    return copy(threads, reinterpret_cast<const uint64_t*>(from), reinterpret_cast<uint64_t*>(to));
  if (element_bytes_ == 4)
    return copy(threads, reinterpret_cast<const uint32_t*>(from), reinterpret_cast<uint32_t*>(to));
  copy(threads, reinterpret_cast<const uint16_t*>(from), reinterpret_cast<uint16_t*>(to));
}

}  // namespace prun::cpu
