// A register tile computed on AMX while the vector units do other work. The tile unit and the vector units run
// concurrently only if their instructions alternate, because the core's out-of-order window of a few hundred
// instructions is shorter than a register tile:
//
//      step of K       0            1            2          ..
//      tile unit   |A0 B0 -> C||A1 B1 -> C||A2 B2 -> C|
//      vector unit    | step() |   | step() |   | step() |  ..  finish() after the last
#pragma once
#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/intrinsics.h"

namespace prun::cpu {

// The interface of overlapped work: step() does a small part of it, finish() the remainder. A step of K calls step()
// once, or twice with a split operand.
struct NoOverlap {
  PRUN_AVX512_BF16 inline void step() {}
  void finish() {}
};

enum class Split : uint8_t { none, a, b };

// Accumulates in tile registers 0 to 3; 4 and 5 hold the upper and lower tile of A, 6 and 7 the left and right of B.
template <Split kSplit, class Overlap>
PRUN_AMX void accumulate_tiles(const PairTiles& a, const PairTiles& b, int64_t steps, Overlap& overlap) {
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
    if constexpr (kSplit != Split::none) overlap.step();
    if constexpr (kSplit == Split::a) {
      _tile_loadd(4, a_at + a.lo, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a_at + a.lo + a.other, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    if constexpr (kSplit == Split::b) {
      _tile_loadd(6, b_at + b.lo, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      _tile_loadd(7, b_at + b.lo + b.other, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    overlap.step();
  }
}

template <class Overlap>
PRUN_AMX void multiply_in_tiles(const PairTiles& a, const PairTiles& b, int64_t steps, const Accumulators& c, bool add,
                                Overlap& overlap) {
  const int64_t row = c.row * 4;
  float *upper = c.first, *lower = upper + c.lower;
  if (add) {
    _tile_loadd(0, upper, row);
    _tile_loadd(1, upper + c.right, row);
    _tile_loadd(2, lower, row);
    _tile_loadd(3, lower + c.right, row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  if (a.lo != 0)
    accumulate_tiles<Split::a>(a, b, steps, overlap);
  else if (b.lo != 0)
    accumulate_tiles<Split::b>(a, b, steps, overlap);
  else
    accumulate_tiles<Split::none>(a, b, steps, overlap);
  _tile_stored(0, upper, row);
  _tile_stored(1, upper + c.right, row);
  _tile_stored(2, lower, row);
  _tile_stored(3, lower + c.right, row);
}

void multiply_in_vectors(const PairTiles& a, const PairTiles& b, int64_t steps, const Accumulators& c, bool add);

// Computes c = A·B, or c += A·B with `add`, over `steps` tiles of K, and calls overlap.step() in each step. At most one
// of A and B may be split. On CPUs without AMX all overlapped work runs after the tile.
template <class Overlap>
void multiply_overlapped(const PairTiles& a, const PairTiles& b, int64_t steps, const Accumulators& c, bool add,
                         Overlap& overlap) {
  if (has_amx()) return multiply_in_tiles(a, b, steps, c, add, overlap);
  multiply_in_vectors(a, b, steps, c, add);
  overlap.finish();
}

}  // namespace prun::cpu
