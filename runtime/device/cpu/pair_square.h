// Squares of 32 x 32 f32 sums of products of bf16 tiles, on AMX where the CPU has it, otherwise with AVX512_BF16.
// Attention is made of them.
#pragma once
#include "device/cpu/pair_tiles.h"

namespace prun::cpu {

// Whether the CPU, and ONEDNN_MAX_CPU_ISA, have AVX512_BF16 and multiply faster with it than f32.
bool has_fast_pairs();

// While it lives, this thread may call square().
class PairSquares {
 public:
  PairSquares();
  ~PairSquares();
  PairSquares(const PairSquares&) = delete;
  PairSquares& operator=(const PairSquares&) = delete;
};

// Tiles of K one after the other; those of the second 16 rows (A) or columns (B) `other` pairs behind. `rest` pairs
// behind a tile lies one that is added to it, what rounding has left; 0: none.
struct PairTiles {
  const Pair* first;
  int64_t other;
  int64_t rest = 0;
};
// Floats from a row to the next, to the right half and to the lower half.
struct SquareSums {
  float* first;
  int64_t row, right, lower;
};
// What a causal mask leaves out of a square on the diagonal: a quarter of the sums, which then are 0 there, or of the
// first or last tile of A or B what is 0. Products by vectors skip it, of A by eight rows, tiles need not.
enum class LeftOut : uint8_t {
  nothing,
  upper_right_sums,
  lower_left_sums,
  end_of_a,       // of the last tile: what of K is behind the row's number
  start_of_a,     // of the first tile: what of K is before the row's number
  end_of_left_b,  // of the last tile: columns 0 to 15, the second half of K
};
// sums (+)= A·B over `steps` tiles of K. One of A and B at most has a rest.
void square(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums, bool add,
            LeftOut out = LeftOut::nothing);

}  // namespace prun::cpu
