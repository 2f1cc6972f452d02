// Which bytes of an arena are taken while an interval of time lasts: where the next buffer finds its lowest place.
//
// A segment tree over time. Surprising fact: nobody looks at buffers one by one. A node keeps the union of the bytes
// of all that live in its span, and since buffers lie close together such a union is a few runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace prun {

// Disjoint runs of bytes, in order; runs that touch are one.
class ByteRuns {
 public:
  using Runs = std::vector<std::pair<int64_t, int64_t>>;
  ByteRuns() = default;
  explicit ByteRuns(Runs any_order);

  void add(int64_t begin, int64_t end);
  // The runs, those as one between which less than `bytes` are free.
  const Runs& around(int64_t bytes) const;

 private:
  Runs runs_;
  // Around `wanted_` bytes, what was last asked for: buffers come sorted by size.
  mutable Runs wide_;
  mutable int64_t wanted_ = 0;
};

class OccupiedBytes {
 public:
  explicit OccupiedBytes(int instants);  // instants are 0 to that
  // Bytes [begin, end) are taken from instant `first` to instant `last`.
  void take(int first, int last, int64_t begin, int64_t end);
  // Adds what is taken at any instant from `first` to `last`; valid until the next take().
  void collect(int first, int last, std::vector<const ByteRuns*>& taken) const;

 private:
  // Of a node: bytes that are taken all the time, and at some time, in its span.
  struct Node {
    int always = -1, sometimes = -1;  // in runs_
  };
  void take(size_t node, int low, int high, int first, int last, int64_t begin, int64_t end);
  void collect(size_t node, int low, int high, int first, int last, std::vector<const ByteRuns*>& taken) const;
  void add(int& runs, int64_t begin, int64_t end);

  int span_ = 1;  // a power of two
  std::vector<Node> nodes_;
  std::deque<ByteRuns> runs_;
};

// The lowest place where `bytes` are free in all of them.
int64_t lowest_place(const std::vector<const ByteRuns*>& taken, int64_t bytes);

}  // namespace prun
