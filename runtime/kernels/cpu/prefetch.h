// Prefetches rows that are needed soon, a cache line at a time while FMAs run.
//
// The rows of a head are parts of longer rows, which the hardware prefetcher does not recognize. Prefetching them all
// at once would fill the line buffers and stall the loads of the current rows.
#pragma once
#include <cstdint>

#include "base/vector_clones.h"

namespace prun::cpu {

class Prefetcher {
  static constexpr int64_t kLine = 64;
  static constexpr int kIntoSecondLevel = 2;

 public:
  // The remaining lines of one array of rows; a loop of FMAs holds it in registers.
  struct Cursor {
    const char* at = nullptr;
    int64_t offset = 0, bytes = 0, stride = 0, rows = 0;

    PRUN_INLINE void step() {
      if (rows == 0) return;
      __builtin_prefetch(at + offset, 0, kIntoSecondLevel);
      offset += kLine;
      if (offset < bytes) return;
      offset = 0;
      at += stride;
      --rows;
    }
  };

  // Adds `width` elements of each of the rows, which are `stride` elements apart. Drops them if the queue is full.
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
  // Returns the number of lines in the queue.
  int64_t lines() const {
    const auto of = [](const Cursor& c) { return c.rows * ((c.bytes + kLine - 1) / kLine); };
    int64_t all = of(now_);
    for (unsigned i = begin_; i < end_; ++i) all += of(waiting_[i % kMost]);
    return all;
  }
  // Prefetches at least `count` lines at once, in whole rows.
  void fetch(int64_t count) {
    while (count > 0) {
      if (now_.rows == 0) {
        if (begin_ == end_) return;
        now_ = waiting_[begin_++ % kMost];
      }
      const char* at = now_.at;
      const int64_t bytes = now_.bytes, stride = now_.stride;
      int64_t rows = now_.rows;
      for (; rows > 0 && count > 0; --rows, at += stride)
        for (int64_t i = 0; i < bytes; i += kLine, --count) __builtin_prefetch(at + i, 0, kIntoSecondLevel);
      now_.at = at, now_.rows = rows, now_.offset = 0;
    }
  }
  // Prefetches all remaining lines.
  void finish() {
    while (next().rows > 0)
      while (now_.rows > 0) now_.step();
  }

 private:
  static constexpr unsigned kMost = 16;
  Cursor now_, waiting_[kMost];
  unsigned begin_ = 0, end_ = 0;
};

}  // namespace prun::cpu
