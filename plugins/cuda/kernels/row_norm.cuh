// The division of rows among threads in row_norm.cu and row_norm_grad.cu: a team of whole warps holds a row in
// registers, some packs of it in each thread.
#pragma once
#include "block.cuh"
#include "launch.h"

namespace prun::cuda {

inline constexpr int kLooseThreads = 256;  // threads of a block that has a row too wide for any team

// Returns the threads of a team with `packs` packs each of a row of this width: a power of two, at least a warp.
template <class T>
int64_t team_of(int64_t width, int packs) {
  int64_t team = kWarp;
  while (team * packs * kPack<T> < width) team *= 2;
  return team;
}

}  // namespace prun::cuda
