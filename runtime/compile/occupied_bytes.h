// Bytes of an arena that are taken during an interval of time, to find the lowest free offset for the next buffer.
//
// A segment tree over time. Surprising fact: queries do not visit buffers. A node holds the union of the bytes of all
// buffers that live in its span; packed buffers are adjacent, so that this union has few runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace prun {

// Disjoint runs of bytes in ascending order; adjacent runs are merged.
class ByteRuns {
 public:
  using Run = std::pair<int64_t, int64_t>;
  using Runs = std::vector<Run>;
  ByteRuns() = default;
  explicit ByteRuns(Runs any_order);

  void add(int64_t begin, int64_t end);
  // Returns the runs in order; if they are many, runs with less than `bytes` free between them are merged.
  std::pair<const Run*, const Run*> around(int64_t bytes) const;

 private:
  struct Many {
    Runs runs;
    // `runs` merged for the size requested last, because buffers come sorted by size.
    Runs wide;
    int64_t wanted = 0;
  };
  Run one_{0, 0};               // the usual case, one run; empty = none
  std::unique_ptr<Many> many_;  // set when there are several runs
};

class OccupiedBytes {
 public:
  explicit OccupiedBytes(int instants);  // from 0 to `instants`
  // Marks bytes [begin, end) as taken from instant `first` to instant `last`.
  void take(int first, int last, int64_t begin, int64_t end);
  // Appends the bytes taken at any instant from `first` to `last`; valid until the next take().
  void collect(int first, int last, std::vector<const ByteRuns*>& taken) const;

 private:
  // Bytes taken during all, or part, of a node's span.
  struct Node {
    int always = -1, sometimes = -1;  // index in runs_; -1 = none
  };
  template <class Inside, class Across>
  void each_node(int first, int last, const Inside& inside, const Across& across) const;
  void add(int& runs, int64_t begin, int64_t end);

  size_t span_ = 1;  // power of two
  std::vector<Node> nodes_;
  std::vector<ByteRuns> runs_;
};

// Finds the lowest offset with `bytes` free bytes; reuses its memory in later searches.
class LowestPlace {
 public:
  int64_t find(const std::vector<const ByteRuns*>& taken, int64_t bytes);

 private:
  struct Rest {
    const ByteRuns::Run *next, *end;
  };
  std::vector<Rest> rests_;
  ByteRuns::Runs short_;  // runs of all short sets
};

}  // namespace prun
