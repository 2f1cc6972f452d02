// See register_tile.h.
#include "kernels/cpu/gemm/register_tile.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "kernels/cpu/kernel_choice.h"

namespace prun::cpu {

bool multiplies_pairs() { return kernels() == Kernels::pairs; }

}  // namespace prun::cpu

#if defined(__x86_64__)
#include "kernels/cpu/gemm/overlapped_tile.h"

namespace prun::cpu {
namespace {

constexpr int64_t kRows = 8;  // of both halves in registers

// Twelve sums in registers, which other instructions than these have no part in.
template <bool kPairs>
PRUN_AVX512_BF16 void add_in_registers(int64_t turns) {
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

}  // namespace

PRUN_AVX512_BF16 void square_in_vectors(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums,
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
      for (int64_t p = 0; p < steps; ++p, left += b.step, right += b.step, rows += a.step) {
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
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(c + r * sums.row, sum[r][0]);
      _mm512_storeu_ps(c + r * sums.row + sums.right, sum[r][1]);
    }
  }
}

// Whether products of pairs, two a lane, are worth their name: CPUs give them the rate of f32 multiply-adds, half of it
// or a quarter; at half of it or less nothing is gained. The two are timed in turn, and the fastest of many rounds is
// far from the line between the rates.
bool pairs_pay() {
  constexpr int64_t kTurns = 4096;
  using Clock = std::chrono::steady_clock;
  const auto time = [](void (*run)(int64_t), Clock::duration& fastest) {
    const Clock::time_point begin = Clock::now();
    run(kTurns);
    fastest = std::min(fastest, Clock::now() - begin);
  };
  Clock::duration pairs = Clock::duration::max(), singles = pairs;
  for (int round = 0; round < 16; ++round) {
    time(add_in_registers<true>, pairs);
    time(add_in_registers<false>, singles);
  }
  return pairs * 10 < singles * 14;
}

PairSquares::PairSquares() {
  if (has_amx()) open_tiles();
}
PairSquares::~PairSquares() {
  if (has_amx()) close_tiles();
}

void square(const PairTiles& a, const PairTiles& b, int64_t steps, const SquareSums& sums, bool add) {
  Nothing nothing;
  square_beside(a, b, steps, sums, add, nothing);
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

bool pairs_pay() { return false; }
PairSquares::PairSquares() {}
PairSquares::~PairSquares() {}
void square(const PairTiles&, const PairTiles&, int64_t, const SquareSums&, bool) { PRUN_CHECK(false, "no squares"); }

}  // namespace prun::cpu

#endif
