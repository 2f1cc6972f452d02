// See bf16_peak.h.
#include "tools/bench/bf16_peak.h"

#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/instruction_set.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace prun {
namespace {

constexpr int64_t kTurns = 1 << 20;
volatile double kept = 0;

__attribute__((target("arch=x86-64-v4,avx512bf16"))) double pairs_avx512(int64_t turns) {
  __m512 sums[12];
  const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
#pragma GCC unroll 12
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < turns; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, x, x);
      asm volatile("" : "+v"(sum));
    }
  }
#pragma GCC unroll 12
  for (const __m512& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  return static_cast<double>(_mm512_cvtss_f32(sums[0]));
}

// Not on the stack: GCC does not see that the intrinsic reads all of it, and would leave it uninitialized.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
const TileConfig kTiles;

// Four accumulator tiles from four operand tiles of zeros, as in gemm/amx_tiles.cc.
__attribute__((target("arch=x86-64-v4,amx-tile,amx-bf16"))) double tiles(int64_t turns) {
  _tile_loadconfig(&kTiles);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < turns; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 0;
}

}  // namespace

Bf16Loop bf16_loop() {
  constexpr double kOfTiles = 4.0 * 2 * 16 * 16 * 32, kOfVectors = 12.0 * 2 * 32;
  if (cpu::has_amx()) return {kOfTiles * kTurns, [] { kept = tiles(kTurns); }};
  if (cpu::instruction_set() == cpu::InstructionSet::avx512 && __builtin_cpu_supports("avx512bf16"))
    return {kOfVectors * kTurns, [] { kept = pairs_avx512(kTurns); }};
  return {};
}

}  // namespace prun

#else

namespace prun {

Bf16Loop bf16_loop() { return {}; }

}  // namespace prun

#endif
