// Products of the CPU device for products.py: answers each line "m n k form bf16" with the median processor seconds of
// one. The first line it writes are the measured peaks of multiply-adds of a core, of f32 and of bf16, in FLOP/s.
//
//     product_bench [packed]        the way that is chosen, or packed_gemm always; form 0: x·w, 1: dy·wᵀ, 2: xᵀ·dy
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string_view>
#include <vector>

#include "device/bf16.h"
#include "device/cpu/amx_gemm.h"
#include "device/cpu/gemm.h"
#include "device/cpu/instruction_set.h"
#include "device/cpu/packed_gemm.h"
#include "ir/types.h"

namespace prun {
namespace {

// Of this thread: what else the machine runs is not counted.
double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

constexpr double kSeconds = 0.15;  // of repetitions for one answer

template <class Run>
double median_seconds(const Run& run) {
  run();
  std::vector<double> times;
  const double begin = processor_seconds();
  while (times.size() < 3 || processor_seconds() - begin < kSeconds) {
    const double start = processor_seconds();
    run();
    times.push_back(processor_seconds() - start);
  }
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

template <int kLanes>
struct Vector {
  typedef float type __attribute__((vector_size(kLanes * 4)));
};

// Chains of multiply-adds on registers alone: 12 hide the latency of any CPU that has these vectors.
template <int kLanes>
inline __attribute__((always_inline)) double chains(int64_t turns) {
  using V = typename Vector<kLanes>::type;
  V sums[12], x = {}, y = {};
  x += 0.999f, y += 0.001f;
#pragma GCC unroll 12
  for (V& sum : sums) sum = y;
  for (int64_t i = 0; i < turns; ++i) {
#pragma GCC unroll 12
    for (V& sum : sums) {
      sum = sum * x + y;
      asm volatile("" : "+v"(sum));
    }
  }
  V all = {};
#pragma GCC unroll 12
  for (const V& sum : sums) all += sum;
  return static_cast<double>(all[0]);
}

#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v4"))) double chains_avx512(int64_t turns) { return chains<16>(turns); }
__attribute__((target("arch=x86-64-v3"))) double chains_avx2(int64_t turns) { return chains<8>(turns); }

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

// Not on the stack: the intrinsic does not say that it reads all of it, and GCC would leave it unwritten.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
const TileConfig kTiles;

// Four tiles of sums from four of zeros, as amx_gemm has them.
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
#endif

constexpr int64_t kTurns = 1 << 20;

double rate_of(int64_t flops_a_turn, double (*run)(int64_t)) {
  volatile double kept = 0;
  return static_cast<double>(flops_a_turn * kTurns) / median_seconds([&] { kept = run(kTurns); });
}

double peak_flops() {
  const auto rate = [](int64_t lanes, double (*run)(int64_t)) { return rate_of(2 * 12 * lanes, run); };
#if defined(__x86_64__)
  if (cpu::instruction_set() == cpu::InstructionSet::avx512) return rate(16, chains_avx512);
  if (cpu::instruction_set() == cpu::InstructionSet::avx2) return rate(8, chains_avx2);
#endif
  return rate(4, chains<4>);
}

// Where the CPU multiplies no bf16, its products are f32's.
double peak_flops_bf16() {
#if defined(__x86_64__)
  if (cpu::has_amx()) return rate_of(int64_t{4} * 2 * 16 * 16 * 32, tiles);
  if (cpu::instruction_set() == cpu::InstructionSet::avx512 && __builtin_cpu_supports("avx512bf16"))
    return rate_of(12 * 2 * 32, pairs_avx512);
#endif
  return peak_flops();
}

struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using Memory = std::unique_ptr<std::byte, Free>;

// Aligned as in a rank's arena.
Memory memory(int64_t bytes) {
  return Memory(
      static_cast<std::byte*>(std::aligned_alloc(kAlignBytes, static_cast<size_t>(round_up(bytes + 1, kAlignBytes)))));
}

// Small numbers of either type: bytes of one pattern would be denormal or huge.
Memory numbers(int64_t count, Dtype dtype) {
  Memory bytes = memory(count * dtype_bytes(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float x = static_cast<float>(i % 17) * 0.125f - 1.0f;
    if (dtype == Dtype::f32)
      reinterpret_cast<float*>(bytes.get())[i] = x;
    else
      reinterpret_cast<bf16*>(bytes.get())[i] = to_bf16(x);
  }
  return bytes;
}

double seconds_of(const cpu::GemmShape& s, bool packed) {
  const Memory a = numbers(s.m * s.k, s.input), b = numbers(s.k * s.n, s.input), c = memory(s.m * s.n * 4);
  const Memory scratch = memory(packed ? cpu::packed_gemm_scratch_bytes(s) : cpu::gemm_scratch_bytes(s));
  if (packed) return median_seconds([&] { cpu::packed_gemm(s, a.get(), b.get(), nullptr, c.get(), scratch.get()); });
  const cpu::Gemm made(s, a.get(), b.get(), nullptr, c.get(), scratch.get());
  return median_seconds([&] { made.run(); });
}

}  // namespace
}  // namespace prun

int main(int count, char** words) {
  using namespace prun;
  const bool packed = count > 1 && std::string_view(words[1]) == "packed";
  std::printf("%g %g\n", peak_flops(), peak_flops_bf16());
  std::fflush(stdout);
  cpu::GemmShape s;
  int form = 0, half = 0;
  while (std::scanf("%ld %ld %ld %d %d", &s.m, &s.n, &s.k, &form, &half) == 5) {
    s.transpose_b = form == 1, s.transpose_a = form == 2;
    s.input = half != 0 ? Dtype::bf16 : Dtype::f32;
    s.output = s.transpose_a ? Dtype::f32 : s.input;
    std::printf("%g\n", seconds_of(s, packed));
    std::fflush(stdout);
  }
  return 0;
}
