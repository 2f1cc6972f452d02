// Small f32 matrix products on tiles in the first- or second-level cache, with A read at any strides. Attention uses
// them, where a library call for a tile would cost more than the tile.
#pragma once
#include <cstdint>

namespace prun::cpu {

inline constexpr int64_t kTileColumns = 16;  // the columns of a tile come in multiples of this

// C[i][j] (+)= Σ_p A[i·a_row + p·a_column] · B[p·b_row + j] for i < m, j < n, p < k; n a multiple of kTileColumns.
struct TileProduct {
  int64_t m, n, k;
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  bool accumulate;
};
void tile_product(const TileProduct& product);

}  // namespace prun::cpu
