// See pair_square.h.
#include "device/cpu/pair_square.h"

#include "base/error.h"
#include "device/cpu/amx_gemm.h"
#include "device/cpu/instruction_set.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <chrono>

namespace prun::cpu {
namespace {

#define PRUN_VECTORS __attribute__((target("arch=x86-64-v4,avx512bf16")))
#define PRUN_TILES __attribute__((target("arch=x86-64-v4,amx-tile,amx-bf16")))

enum class Rest : uint8_t { none, of_a, of_b };

// Adds up in tiles 0 to 3.
template <Rest kRest>
PRUN_TILES void multiply(const PairTiles& a, const PairTiles& b, int64_t steps) {
  const Pair *a_at = a.first, *b_at = b.first;
  for (int64_t p = 0; p < steps; ++p, a_at += kTile, b_at += kTile) {
    _tile_loadd(4, a_at, 64);
    _tile_loadd(6, b_at, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b_at + b.other, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a_at + a.other, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
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
  }
}

PRUN_TILES void square_amx(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums, bool add) {
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
    multiply<Rest::of_a>(a, b, steps);
  else if (b.rest != 0)
    multiply<Rest::of_b>(a, b, steps);
  else
    multiply<Rest::none>(a, b, steps);
  _tile_stored(0, upper, row);
  _tile_stored(1, upper + sums.right, row);
  _tile_stored(2, lower, row);
  _tile_stored(3, lower + sums.right, row);
}

constexpr int64_t kRows = 8;  // of both halves in registers

// Of a tile of K.
PRUN_VECTORS inline void add_products(const Pair* rows, const Pair* left, const Pair* right, __m512 (&sum)[kRows][2]) {
  for (int64_t i = 0; i < kSide; ++i) {
    const __m512bh x = (__m512bh)_mm512_loadu_si512(left + i * kSide);
    const __m512bh y = (__m512bh)_mm512_loadu_si512(right + i * kSide);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const __m512bh factor = (__m512bh)_mm512_set1_epi32(static_cast<int>(rows[r * kSide + i]));
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], factor, x);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], factor, y);
    }
  }
}

PRUN_VECTORS void square_avx512(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums,
                                bool add) {
  for (int64_t top = 0; top < kBlock; top += kRows) {
    float* c = sums.first + top / kSide * sums.lower + top % kSide * sums.row;
    __m512 sum[kRows][2];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      sum[r][0] = add ? _mm512_loadu_ps(c + r * sums.row) : _mm512_setzero_ps();
      sum[r][1] = add ? _mm512_loadu_ps(c + r * sums.row + sums.right) : _mm512_setzero_ps();
    }
    for (int part = 0; part < (a.rest != 0 || b.rest != 0 ? 2 : 1); ++part) {
      const Pair *left = b.first + part * b.rest, *right = left + b.other;
      const Pair* rows = a.first + part * a.rest + top / kSide * a.other + top % kSide * kSide;
      for (int64_t p = 0; p < steps; ++p, left += kTile, right += kTile, rows += kTile)
        add_products(rows, left, right, sum);
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(c + r * sums.row, sum[r][0]);
      _mm512_storeu_ps(c + r * sums.row + sums.right, sum[r][1]);
    }
  }
}

// Twelve sums in registers, which other instructions than these have no part in.
template <bool kPairs>
PRUN_VECTORS void add_in_registers(int64_t turns) {
  __m512 sums[12];
  const __m512 ones = _mm512_set1_ps(1.0f);
#pragma GCC unroll 12
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < turns; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = kPairs ? _mm512_dpbf16_ps(sum, (__m512bh)ones, (__m512bh)ones) : _mm512_fmadd_ps(ones, ones, sum);
      asm volatile("" : "+v"(sum));
    }
  }
}

// Whether products of pairs, two a lane, are worth their name: CPUs give them the rate of f32 multiply-adds, half of it
// or a quarter, so that no clock makes this a close call. At half of it or less nothing is gained.
bool vectors_pay() {
  static const bool pay = [] {
    constexpr int64_t kTurns = 4096;
    using Clock = std::chrono::steady_clock;
    const auto fastest = [](void (*run)(int64_t)) {
      Clock::duration least = Clock::duration::max();
      for (int round = 0; round < 8; ++round) {
        const Clock::time_point begin = Clock::now();
        run(kTurns);
        least = std::min(least, Clock::now() - begin);
      }
      return least;
    };
    return fastest(add_in_registers<true>) * 10 < fastest(add_in_registers<false>) * 14;
  }();
  return pay;
}

}  // namespace

bool has_pair_squares() { return has_amx() || (has_avx512_bf16() && vectors_pay()); }

PairSquares::PairSquares() {
  if (has_amx()) open_tiles();
}
PairSquares::~PairSquares() {
  if (has_amx()) close_tiles();
}

void square(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums, bool add) {
  if (has_amx()) return square_amx(a, b, steps, sums, add);
  square_avx512(a, b, steps, sums, add);
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

bool has_pair_squares() { return false; }
PairSquares::PairSquares() {}
PairSquares::~PairSquares() {}
void square(const PairTiles&, const PairTiles&, int64_t, const SquareSums&, bool) { PRUN_CHECK(false, "no squares"); }

}  // namespace prun::cpu

#endif
