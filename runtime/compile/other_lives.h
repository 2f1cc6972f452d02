// Bytes of buffers that not only the compute stream accesses, to find those in the way of another buffer.
//
//     instants of the compute stream    first ─ begin ─ [═══ core ═══] ─ end ─ last
//
// Two such buffers whose cores overlap interfere (buffer_lives.h), which a segment tree finds. Otherwise they can only
// interfere where one's end overlaps the other's begin; these few are compared by the happens-before order, and so are
// buffers without a core.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "compile/buffer_lives.h"
#include "compile/occupied_bytes.h"

namespace prun {

class OtherLives {
 public:
  explicit OtherLives(const BufferLives& lives);
  void take(const Life& life, int64_t begin, int64_t end);
  // Appends the bytes in the way of a buffer, which may be one of the compute stream alone; valid until the next
  // take(). `compared`: receives runs that `taken` refers to.
  void collect(const Life& life, std::vector<const ByteRuns*>& taken, std::deque<ByteRuns>& compared) const;

 private:
  struct Taken {
    const Life* life;
    int64_t begin, end;
  };
  struct Interval {
    int first, last;
  };
  // Items by the buckets that an interval of each covers.
  class Buckets {
   public:
    Buckets(int64_t length, int width) : width_(width), items_(length / width + 1) {}
    void add(Interval interval, const Taken& taken);
    // Calls `use` once for each item whose interval shares a bucket with this one.
    template <class Use>
    void each(Interval interval, const Use& use) const;

   private:
    struct Item {
      int first_bucket;
      Taken taken;
    };
    int width_;
    std::vector<std::vector<Item>> items_;
  };

  static Interval begin_of(const Life& life) { return {life.first, life.core_first}; }
  static Interval end_of(const Life& life) { return {life.core_last, life.last}; }
  static Interval positions_of(const Life& life) { return {life.first_position, life.last_position}; }

  const BufferLives& lives_;
  OccupiedBytes whole_, cores_;
  Buckets begins_, ends_;        // by instants
  Buckets all_, without_cores_;  // by positions
};

}  // namespace prun
