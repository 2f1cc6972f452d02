// Products of bf16 by AVX512_BF16 as packed_gemm has them: panels of pairs of neighbours in K, and micro-tiles of them.
#pragma once
#include "kernels/cpu/gemm/micro_tile.h"
#include "kernels/cpu/gemm/pair_tiles.h"

namespace prun::cpu {

// Panels of `step` columns, 14 or 32, of the matrix x of `depth` rows, or of x stored transposed: pair p of a panel's
// columns at [p · step]. A last panel and a last pair are padded with zeros. `sums`, if any: the columns' sums are
// added.
void copy_pair_panels(bool transposed, const bf16* x, int64_t x_row, int64_t columns, int64_t depth, int64_t step,
                      Pair* to, float* sums);

extern const TileKernel kPairTiles;

}  // namespace prun::cpu
