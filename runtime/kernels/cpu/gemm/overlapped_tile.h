// Squares of sums beside other work: tiles are multiplied by a unit of their own, and vectors meanwhile, if what they
// compute stands between the tiles' instructions. A core looks ahead by a few hundred of them, which is less than a
// square.
#pragma once
#include "kernels/cpu/attention/attention_vectors.h"
#include "kernels/cpu/gemm/amx_gemm.h"
#include "kernels/cpu/gemm/register_tile.h"

#define PRUN_TILES __attribute__((target("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16")))

namespace prun::cpu {

// What work beside squares looks like: step() is a small part of it, finish() all that is left. A step of tiles calls
// it once, one with a rest twice.
struct Nothing {
  PRUN_AVX512_BF16 inline void step() {}
  void finish() {}
};

enum class Rest : uint8_t { none, of_a, of_b };

// Adds up in tiles 0 to 3.
template <Rest kRest, class Beside>
PRUN_TILES void multiply(const PairTiles& a, const PairTiles& b, int64_t steps, Beside& beside) {
  const Pair *a_at = a.first, *b_at = b.first;
  for (int64_t p = 0; p < steps; ++p, a_at += a.step, b_at += b.step) {
    _tile_loadd(4, a_at, 64);
    _tile_loadd(6, b_at, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b_at + b.other, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a_at + a.other, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    if constexpr (kRest != Rest::none) beside.step();
    if constexpr (kRest == Rest::of_a) {
      _tile_loadd(4, a_at + a.rest, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a_at + a.rest + a.other, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    if constexpr (kRest == Rest::of_b) {
      _tile_loadd(6, b_at + b.rest, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      _tile_loadd(7, b_at + b.rest + b.other, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    beside.step();
  }
}

template <class Beside>
PRUN_TILES void square_in_tiles(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums, bool add,
                                Beside& beside) {
  const int64_t row = sums.row * 4;
  float *upper = sums.first, *lower = upper + sums.lower;
  if (add) {
    _tile_loadd(0, upper, row);
    _tile_loadd(1, upper + sums.right, row);
    _tile_loadd(2, lower, row);
    _tile_loadd(3, lower + sums.right, row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  if (a.rest != 0)
    multiply<Rest::of_a>(a, b, steps, beside);
  else if (b.rest != 0)
    multiply<Rest::of_b>(a, b, steps, beside);
  else
    multiply<Rest::none>(a, b, steps, beside);
  _tile_stored(0, upper, row);
  _tile_stored(1, upper + sums.right, row);
  _tile_stored(2, lower, row);
  _tile_stored(3, lower + sums.right, row);
}

void square_in_vectors(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums, bool add);

// square(), with beside.step() in each of the steps; where vectors multiply, with all of it behind them.
template <class Beside>
void square_beside(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums, bool add,
                   Beside& beside) {
  if (has_amx()) return square_in_tiles(a, b, steps, sums, add, beside);
  square_in_vectors(a, b, steps, sums, add);
  beside.finish();
}

}  // namespace prun::cpu
