// A register tile: 32 x 32 f32 accumulators of GEMMs of bf16 tiles on AMX, of which attention is made. On CPUs without
// AMX vectors compute the same accumulators for tests; attention itself then uses faster kernels.
#pragma once
#include "kernels/cpu/gemm/pair_tiles.h"

namespace prun::cpu {

// Asks the system for the tile registers, for this process and its forks. Returns whether it may use them.
bool tiles_are_allowed();
// Whether GEMMs of bf16 use AMX tiles (kernel_choice.h).
bool has_amx();
// Configures this thread's registers as eight tiles of 16 rows of 64 bytes, and releases them.
void open_tiles();
void close_tiles();

// Whether GEMMs of bf16 multiply pairs in vectors (kernel_choice.h).
bool multiplies_pairs();
// Whether pairs in vectors are faster here than FMAs in f32. Measures; needs AVX512_BF16.
bool pairs_pay();

// Owns this thread's tile registers; register tiles (overlapped_tile.h) need one alive.
class TileRegisters {
 public:
  TileRegisters();
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// An operand: tiles of K `step` pairs apart. `other` is the offset in pairs to the tile of the second 16 rows (A) or
// columns (B). An operand that is split into two bf16 numbers has its low tile `lo` pairs after the high one; 0 = none.
struct PairTiles {
  const Pair* first;
  int64_t other;
  int64_t lo = 0;
  int64_t step = kTile;
};
// Offsets in floats from a row to the next, to the right half and to the lower half.
struct Accumulators {
  float* first;
  int64_t row, right, lower;
};

}  // namespace prun::cpu
