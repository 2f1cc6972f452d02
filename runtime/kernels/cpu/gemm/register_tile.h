// A register tile: 32 x 32 f32 accumulators of bf16 GEMMs on AMX, the building block of attention. On CPUs without AMX
// the vector units compute it for tests; attention itself then uses faster kernels.
#pragma once
#include "kernels/cpu/gemm/pair_tiles.h"

namespace prun::cpu {

// Requests the tile registers from the operating system, for this process and its forks. Returns whether it granted
// them.
bool tiles_are_allowed();
// Returns whether bf16 GEMMs use AMX tiles (kernel_choice.h).
bool has_amx();
// Configures this thread's registers as eight tiles of 16 rows of 64 bytes; close_tiles releases them.
void open_tiles();
void close_tiles();

// Returns whether bf16 GEMMs multiply pairs in vectors (kernel_choice.h).
bool has_pair_gemm();
// Returns whether pairs in vectors are faster on this CPU than FMAs in f32. Measures; needs AVX512_BF16.
bool pairs_pay();

// Owns this thread's tile registers; register tiles (overlapped_tile.h) need one alive.
class TileRegisters {
 public:
  TileRegisters();
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// An operand: tiles along K, `step` pairs apart. `other` is the offset in pairs to the tile of the second 16 rows (A)
// or columns (B). An operand split into two bf16 numbers has its lo tile `lo` pairs after the hi tile; 0 = not split.
struct PairTiles {
  const Pair* first;
  int64_t other;
  int64_t lo = 0;
  int64_t step = kTile;
};
// Offsets in floats to the next row, to the right half and to the lower half.
struct Accumulators {
  float* first;
  int64_t row, right, lower;
};

}  // namespace prun::cpu
