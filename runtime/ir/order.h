// The happens-before order of a body: which ops are certain to have completed before which.
//
// Each op has a vector clock: for every stream, how many of its ops have completed when this op begins (Lamport
// 1978, Mattern 1989). Streams meet at the end of a step, so one step's order is enough.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace prun {

struct OpRef {
  StreamId stream = 0;
  int index = 0;
  bool operator==(const OpRef&) const = default;
};

class Order {
 public:
  // Builds the clocks. `stuck` is empty unless waits form a cycle: then it holds the first blocked op of each stream.
  explicit Order(const Body& body);
  const std::vector<OpRef>& stuck() const { return stuck_; }
  // True when `a` has completed before `b` begins, on every execution.
  bool before(OpRef a, OpRef b) const {
    return a.stream == b.stream ? a.index < b.index : clock(b)[a.stream] > a.index;
  }
  // Ops in one legal sequence.
  const std::vector<OpRef>& sequence() const { return sequence_; }

 private:
  const int* clock(OpRef op) const {
    return &clocks_[static_cast<size_t>(first_[op.stream] + op.index) * static_cast<size_t>(streams_)];
  }
  int streams_ = 0;
  std::vector<int> first_;   // of each stream in the flat numbering
  std::vector<int> clocks_;  // ops x streams
  std::vector<OpRef> stuck_, sequence_;
};

}  // namespace prun
