// See register_tile.h.
#include "kernels/cpu/gemm/register_tile.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "kernels/cpu/kernel_choice.h"

namespace prun::cpu {

bool has_amx() { return kernels() == Kernels::tiles; }
bool has_pair_gemm() { return kernels() == Kernels::pairs; }

}  // namespace prun::cpu

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/gemm/overlapped_tile.h"

namespace prun::cpu {
namespace {

constexpr int64_t kRows = 8;  // rows, left and right half, whose accumulators fit the registers

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {kSide, kSide, kSide, kSide, kSide, kSide, kSide, kSide};
};
const TileConfig kTiles;

// Runs twelve independent chains of FMAs in registers and nothing else.
template <bool kPairs>
PRUN_AVX512_BF16 void add_in_registers(int64_t repeats) {
  __m512 sums[12];
  const __m512 ones = _mm512_set1_ps(1.0f);
#pragma GCC unroll 12
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < repeats; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = kPairs ? _mm512_dpbf16_ps(sum, (__m512bh)ones, (__m512bh)ones) : _mm512_fmadd_ps(ones, ones, sum);
      asm volatile("" : "+v"(sum));
    }
  }
}

}  // namespace

PRUN_AVX512_BF16 void multiply_in_vectors(const PairTiles& a, const PairTiles& b, int64_t steps, const Accumulators& c,
                                          bool add) {
  for (int64_t top = 0; top < kBlock; top += kRows) {
    float* rows_of_c = c.first + top / kSide * c.lower + top % kSide * c.row;
    __m512 sum[kRows][2];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      sum[r][0] = add ? _mm512_loadu_ps(rows_of_c + r * c.row) : _mm512_setzero_ps();
      sum[r][1] = add ? _mm512_loadu_ps(rows_of_c + r * c.row + c.right) : _mm512_setzero_ps();
    }
    for (int part = 0; part < (a.lo != 0 || b.lo != 0 ? 2 : 1); ++part) {
      const Pair *left = b.first + part * b.lo, *right = left + b.other;
      const Pair* rows = a.first + part * a.lo + top / kSide * a.other + top % kSide * kSide;
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
      _mm512_storeu_ps(rows_of_c + r * c.row, sum[r][0]);
      _mm512_storeu_ps(rows_of_c + r * c.row + c.right, sum[r][1]);
    }
  }
}

// CPUs execute pair instructions at the rate of f32 FMAs, at half of it or at a quarter; pairs gain nothing at half or
// less. The two are timed alternately, and the fastest of many rounds is far from the threshold between the rates.
bool pairs_pay() {
  constexpr int64_t kRepeats = 4096;
  using Clock = std::chrono::steady_clock;
  const auto time = [](void (*run)(int64_t), Clock::duration& fastest) {
    const Clock::time_point begin = Clock::now();
    run(kRepeats);
    fastest = std::min(fastest, Clock::now() - begin);
  };
  Clock::duration pairs = Clock::duration::max(), singles = pairs;
  for (int round = 0; round < 16; ++round) {
    time(add_in_registers<true>, pairs);
    time(add_in_registers<false>, singles);
  }
  return pairs * 10 < singles * 14;
}

bool tiles_are_allowed() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

PRUN_AMX void open_tiles() { _tile_loadconfig(&kTiles); }
PRUN_AMX void close_tiles() { _tile_release(); }

TileRegisters::TileRegisters() {
  if (has_amx()) open_tiles();
}
TileRegisters::~TileRegisters() {
  if (has_amx()) close_tiles();
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

bool tiles_are_allowed() { return false; }
void open_tiles() {}
void close_tiles() {}
bool pairs_pay() { return false; }
TileRegisters::TileRegisters() {}
TileRegisters::~TileRegisters() {}

}  // namespace prun::cpu

#endif
