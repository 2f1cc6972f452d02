// Slots of experts that hold a token: the first ones of the equal run that an expert has for each source of its tokens.
// Their numbers are on the device.
//
// Surprising fact: most experts have no token in a later round of a dropless mixture, and no op of the round reads
// their slots, so they remain as they are. Most rounds have no token at all, and take as long as their launches: their
// kernels have as many blocks as run at once, which end when they have read the numbers.
#pragma once
#include "block.cuh"
#include "cuda/device/context.h"
#include "op.h"

namespace prun::cuda {

struct ExpertSlots {
  const int32_t* filled;                   // [experts, sources]: tokens in all rounds
  int64_t experts, sources, rows, before;  // rows of a run; tokens of a run in earlier rounds
  bool later;                              // a round after the first

  // Returns the rows of a run that have a token.
  __device__ __forceinline__ int64_t taken(int64_t expert, int64_t source) const {
    const int64_t n = filled[expert * sources + source] - before;
    return n < 0 ? 0 : n < rows ? n : rows;
  }
  __device__ __forceinline__ bool has_token(int64_t expert, int64_t row) const {
    const uint32_t source = static_cast<uint32_t>(row) / static_cast<uint32_t>(rows);
    return filled[expert * sources + source] - before > row - source * rows;
  }
  // Returns the first of an expert's rows from `row` on that has a token, or `none`.
  __device__ __forceinline__ int64_t next(int64_t expert, int64_t row, int64_t none) const {
    if (rows == 0) return none;
    int64_t source = static_cast<uint32_t>(row) / static_cast<uint32_t>(rows);
    for (int64_t place = row - source * rows; source < sources; ++source, place = 0)
      if (taken(expert, source) > place) return source * rows + place;
    return none;
  }
  // Returns whether the slots of an expert remain as they are, because it has no token.
  __device__ __forceinline__ bool leaves(int64_t expert) const { return later && next(expert, 0, -1) < 0; }
  // Returns whether the op does nothing. All threads of a block of whole warps must call it.
  __device__ bool is_idle() const {
    if (!later) return false;
    int any[1] = {0};
    for (int64_t i = threadIdx.x; i < experts * sources; i += blockDim.x) any[0] |= filled[i] > before ? 1 : 0;
    block_reduce(any, 0, [](int a, int b) { return a | b; });
    return any[0] == 0;
  }
};

// Returns the slots of [experts, slots, ..]; operand `read` has their numbers.
inline ExpertSlots expert_slots_of(const OpView& view, size_t read, int64_t experts, int64_t slots) {
  const int64_t sources = view.read(read).shape.last();
  view.expect_count(view.read(read), experts * sources);
  view.expect(sources > 0 && slots % sources == 0 && slots <= INT32_MAX,
              std::to_string(slots) + " slots do not divide into those of the sources");
  const int64_t round = view.integer("round");
  return {view.in<int32_t>(read), experts, sources, slots / sources, round * (slots / sources), round > 0};
}

// Returns the most blocks, of 256 threads each, of a round's kernel: `whole` in the first round, then those that the
// GPU runs at once.
inline int64_t blocks_of_round(const OpView& view, int64_t whole) {
  return view.integer("round") > 0 ? view.context().multiprocessors() * int64_t{8} : whole;
}

}  // namespace prun::cuda
