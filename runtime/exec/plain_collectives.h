// Reference collectives: all members' pointers at once, in rank order. Transports must give the same results.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/coll_kind.h"
#include "ir/types.h"

namespace prun {

// One member's operands; counts are those of its tensors, in elements.
struct PlainMember {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t in_count = 0, out_count = 0;
  const int64_t* share = nullptr;  // all_gather_v: number of valid elements of `in`
  int64_t* shares = nullptr;       // all_gather_v: receives every member's share
};

// Reduces as comm/reduce.h does. Reads all inputs before it writes an output, so they may share memory. Does not
// support all_to_all_v.
void run_plain_collective(CollKind kind, Dtype dtype, RedOp op, int root, const std::vector<PlainMember>& members);

}  // namespace prun
