// How rows are given to threads in row_norm.cu and row_norm_grad.cu: a team of whole warps holds a row in registers,
// some packs of it in each thread.
#pragma once
#include "block.cuh"
#include "launch.h"

namespace prun::cuda {

inline constexpr int kLooseThreads = 256;  // a block of these takes a row that no team can hold

// Threads of the team whose members hold `packs` each of a row of this width: a warp or more of them, a power of two.
template <class T>
int64_t team_of(int64_t width, int packs) {
  int64_t team = kWarp;
  while (team * packs * kPack<T> < width) team *= 2;
  return team;
}

}  // namespace prun::cuda
