// From when to when the buffers of a body live, in its happens-before order.
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

// What of a buffer's life other buffers are held against. `first` and `last` are instants of the compute stream: its op
// i is instant 2i + 1, and what happens between ops i - 1 and i is instant 2i. Two whose instants do not overlap are
// never in each other's way; of two that only the compute stream touches, or one of them, the others are.
struct Life {
  std::vector<StreamLife> streams;
  int first = 0, last = 0;
  int first_position = 0, last_position = 0;  // in the order's sequence: buffers in each other's way overlap
  bool any() const { return !streams.empty(); }
  bool computes_only() const { return streams.size() == 1 && streams.front().stream == 0; }
};

class BufferLives {
 public:
  // Both outlive it.
  BufferLives(const Program& program, const Body& body);
  const Life& operator[](BufferId buffer) const { return lives_[buffer]; }
  int instants() const { return 2 * ops_on(0) + 1; }
  size_t positions() const { return order_.sequence().size(); }

  bool disjoint(const Life& a, const Life& b) const { return precedes(a, b) || precedes(b, a); }
  // Every access of a has completed before any of b begins.
  bool precedes(const Life& a, const Life& b) const;
  // From the first access of any to the last.
  Life together(const std::vector<const Life*>& lives) const;

 private:
  int ops_on(StreamId stream) const;
  int dead_from(const Life& life, StreamId stream) const;
  int ended_before(const Life& life) const;
  void find_instants(Life& life) const;

  const Body& body_;
  Order order_;
  Table<BufferId, Life> lives_;
  Table<StreamId, std::vector<int>> positions_;  // of each op in the order's sequence
};

}  // namespace prun
