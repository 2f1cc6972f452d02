// The happens-before order of a body.
//
// Each op has a vector clock: for every stream, the number of its ops that have completed when this op begins (Lamport
// 1978, Mattern 1989). Streams join at the end of a step, so that one step's order suffices (except for ir/carried.h).
#pragma once
#include <cstdint>
#include <vector>

#include "ir/walk.h"

namespace prun {

class Order {
 public:
  // Builds the clocks. `stuck` is empty unless waits form a cycle: then it has the first blocked op of each stream.
  explicit Order(const Body& body);
  const std::vector<OpRef>& stuck() const { return stuck_; }
  // Returns whether `a` has completed before `b` begins, in every execution.
  bool before(OpRef a, OpRef b) const { return ended_before(b, a.stream) > a.index; }
  // Returns the number of ops of a stream that have completed before `op` begins.
  int ended_before(OpRef op, StreamId stream) const { return op.stream == stream ? op.index : clock(op)[stream]; }
  // Returns all ops in one legal sequence.
  const std::vector<OpRef>& sequence() const { return sequence_; }

 private:
  class Clocks;
  size_t at(OpRef op) const { return size_t{1} * streams_ * (first_[op.stream] + op.index); }
  TableView<StreamId, int> clock(OpRef op) { return {&clocks_[at(op)]}; }
  TableView<StreamId, const int> clock(OpRef op) const { return {&clocks_[at(op)]}; }
  int streams_ = 0, total_ = 0;
  Table<StreamId, int> first_;  // flat number of each stream's first op
  std::vector<int> clocks_;     // ops x streams
  std::vector<OpRef> stuck_, sequence_;
};

}  // namespace prun
