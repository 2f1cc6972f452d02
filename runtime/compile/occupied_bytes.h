// Which bytes of an arena are taken while an interval of time lasts: where the next buffer finds its lowest place.
//
// A segment tree over time. Surprising fact: nobody looks at buffers one by one. A node keeps the union of the bytes
// of all that live in its span, and since buffers lie close together such a union is a few runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace prun {

// Disjoint runs of bytes, in order; runs that touch are one.
class ByteRuns {
 public:
  using Run = std::pair<int64_t, int64_t>;
  using Runs = std::vector<Run>;
  ByteRuns() = default;
  explicit ByteRuns(Runs any_order);

  void add(int64_t begin, int64_t end);
  // The runs; where they are many, those as one between which less than `bytes` are free.
  std::pair<const Run*, const Run*> around(int64_t bytes) const;

 private:
  struct Many {
    Runs runs;
    // Around `wanted` bytes, what was last asked for: buffers come sorted by size.
    Runs wide;
    int64_t wanted = 0;
  };
  Run one_{0, 0};               // most are one run; empty: there is none
  std::unique_ptr<Many> many_;  // when they have become more
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
  template <class Inside, class Across>
  void each_node(int first, int last, const Inside& inside, const Across& across) const;
  void add(int& runs, int64_t begin, int64_t end);

  size_t span_ = 1;  // a power of two
  std::vector<Node> nodes_;
  std::vector<ByteRuns> runs_;
};

// The lowest place where so many bytes are free; one for searches that follow each other.
class LowestPlace {
 public:
  int64_t find(const std::vector<const ByteRuns*>& taken, int64_t bytes);

 private:
  struct Rest {
    const ByteRuns::Run *next, *end;
  };
  std::vector<Rest> rests_;
};

}  // namespace prun
