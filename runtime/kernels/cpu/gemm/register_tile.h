// Squares of 32 x 32 f32 sums of products of bf16 tiles, on AMX. Attention is made of them. Where there are no tiles,
// vectors compute the same, for tests: attention itself then has better ways.
#pragma once
#include "kernels/cpu/gemm/pair_tiles.h"

namespace prun::cpu {

// Whether products of bf16 are made of pairs in vectors (kernel_choice.h).
bool multiplies_pairs();
// Whether those are faster here than products in f32; needs AVX512_BF16. Measures.
bool pairs_pay();

// While it lives, this thread may call square().
class PairSquares {
 public:
  PairSquares();
  ~PairSquares();
  PairSquares(const PairSquares&) = delete;
  PairSquares& operator=(const PairSquares&) = delete;
};

// Tiles of K `step` pairs apart; those of the second 16 rows (A) or columns (B) `other` pairs behind. `rest` pairs
// behind a tile lies one that is added to it, what rounding has left; 0: none.
struct PairTiles {
  const Pair* first;
  int64_t other;
  int64_t rest = 0;
  int64_t step = kTile;
};
// Floats from a row to the next, to the right half and to the lower half.
struct SquareSums {
  float* first;
  int64_t row, right, lower;
};
// sums (+)= A·B over `steps` tiles of K. One of A and B at most has a rest.
void square(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums, bool add);

}  // namespace prun::cpu
