// Rows that are needed soon, asked for a cache line at a time while products are computed.
//
// A head's rows are pieces of longer rows, which the machine does not fetch ahead by itself; asked for all at once,
// they would wait for each other, and the products for them.
#pragma once
#include <cstdint>

#include "base/vector_clones.h"

namespace prun::cpu {

class Ahead {
 public:
  // The lines that are left of one array of rows: what a loop over products keeps in registers.
  struct Cursor {
    const char* at = nullptr;
    int64_t offset = 0, bytes = 0, stride = 0, rows = 0;

    PRUN_INLINE void step() {
      constexpr int kIntoSecondLevel = 2;
      if (rows == 0) return;
      __builtin_prefetch(at + offset, 0, kIntoSecondLevel);
      offset += kLine;
      if (offset < bytes) return;
      offset = 0;
      at += stride;
      --rows;
    }
  };

  // `width` elements of each of the rows, `stride` elements apart. What there is no room for is not asked for.
  template <class T>
  void add(const T* first, int64_t stride, int64_t rows, int64_t width) {
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    if (end_ - begin_ == kMost) return;
    waiting_[end_++ % kMost] = {reinterpret_cast<const char*>(first), 0, width * kSize, stride * kSize, rows};
  }
  PRUN_INLINE Cursor next() {
    if (now_.rows == 0 && begin_ < end_) now_ = waiting_[begin_++ % kMost];
    return now_;
  }
  PRUN_INLINE void keep(const Cursor& left) { now_ = left; }
  // All that is left.
  void finish() {
    while (next().rows > 0)
      while (now_.rows > 0) now_.step();
  }

 private:
  static constexpr int64_t kLine = 64;
  static constexpr unsigned kMost = 16;
  Cursor now_, waiting_[kMost];
  unsigned begin_ = 0, end_ = 0;
};

}  // namespace prun::cpu
