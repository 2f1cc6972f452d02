// Live ranges of the buffers of a body, in its happens-before order.
#pragma once
#include <climits>
#include <vector>

#include "ir/order.h"
#include "ir/program.h"

namespace prun {

// First and last access of a buffer on a stream of a body.
struct StreamLife {
  StreamId stream;
  int first = 0, last = 0;
};

// A buffer's live range. `first` and `last` are instants of the compute stream: its op i is instant 2i + 1, the gap
// between ops i - 1 and i is instant 2i. Buffers with disjoint instants never interfere. If only the compute stream
// accesses one of two buffers, or both, overlapping instants also imply that they interfere.
struct Life {
  std::vector<StreamLife> streams;
  int first = 0, last = 0;
  // The instants from `core_first` to `core_last` are those of the ops of the compute stream that certainly run between
  // two accesses, or access the buffer. Buffers whose cores overlap interfere. Not set for `computes_only`.
  int core_first = 0, core_last = -1;
  int first_position = 0, last_position = 0;  // in the order's sequence; two buffers that interfere overlap here
  bool any() const { return !streams.empty(); }
  bool has_core() const { return core_first <= core_last; }
  bool computes_only() const { return streams.size() == 1 && streams.front().stream == 0; }
};

class BufferLives {
 public:
  // The program and the body must outlive this object.
  BufferLives(const Program& program, const Body& body);
  const Life& operator[](BufferId buffer) const { return lives_[buffer]; }
  int instants() const { return 2 * ops_on(0) + 1; }
  size_t positions() const { return order_.sequence().size(); }

  bool disjoint(const Life& a, const Life& b) const { return precedes(a, b) || precedes(b, a); }
  // Returns whether every access of a has completed before any access of b begins.
  bool precedes(const Life& a, const Life& b) const;
  // Returns the union: from the first access of any buffer to the last.
  Life together(const std::vector<const Life*>& lives) const;

 private:
  int ops_on(StreamId stream) const;
  void find_successors();
  int dead_from(const Life& life, StreamId stream) const;
  int ended_before(const Life& life) const;
  void find_core(Life& life) const;
  void find_instants(Life& life) const;

  const Body& body_;
  Order order_;
  Table<BufferId, Life> lives_;
  Table<StreamId, std::vector<int>> positions_;  // position of each op in the order's sequence
  // By stream, other stream and op of the first: index of the first op of the other that begins after that op has
  // ended.
  Table<StreamId, Table<StreamId, std::vector<int>>> successor_;
};

}  // namespace prun
