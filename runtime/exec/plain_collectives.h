// Collectives by definition: every member's pointers at once, plain loops in rank order. What transports must equal.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/types.h"

namespace prun {

// One member's operands; counts are those of its tensors, in elements.
struct PlainMember {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t in_count = 0, out_count = 0;
  const int64_t* share = nullptr;  // all_gather_v: how many elements of `in` count
  int64_t* shares = nullptr;       // all_gather_v: every member's
};

// Reductions accumulate in f32 for bf16 and f16, in 64 bits for averages of integers, else in the dtype itself; an
// average is the sum times 1/N. Inputs are read before any output is written, so they may share memory.
void run_plain_collective(std::string_view kind, Dtype dtype, RedOp op, int root,
                          const std::vector<PlainMember>& members);

}  // namespace prun
