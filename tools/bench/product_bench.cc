// GEMMs of the CPU device for products.py: answers each line "m n k form bf16" with the median CPU seconds of one GEMM.
// Its first line has the measured FMA peaks of a core in f32 and in bf16, in FLOP/s.
//
//     product_bench [panels]     form 0: x·w, 1: dy·wᵀ, 2: xᵀ·dy
//
// Runs the table's entry for a shape, or with `panels` always the panel backend.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string_view>
#include <vector>

#include "device/bf16.h"
#include "ir/types.h"
#include "kernels/cpu/gemm/driver.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/instruction_set.h"
#include "tools/bench/bf16_peak.h"

namespace prun {
namespace {

// Returns the CPU time of this thread, which excludes other load of the machine.
double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

constexpr double kSeconds = 0.15;  // of repetitions per answer

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

// Independent chains of FMAs on registers: 12 hide the latency of any CPU with these vectors.
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
#endif

double peak_flops() {
  constexpr int64_t kTurns = 1 << 22;
  volatile double kept = 0;
  const auto rate = [&](int lanes, double (*run)(int64_t)) {
    return static_cast<double>(2 * 12 * lanes * kTurns) / median_seconds([&] { kept = run(kTurns); });
  };
#if defined(__x86_64__)
  if (cpu::instruction_set() == cpu::InstructionSet::avx512) return rate(16, chains_avx512);
  if (cpu::instruction_set() == cpu::InstructionSet::avx2) return rate(8, chains_avx2);
#endif
  return rate(4, chains<4>);
}

struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using Memory = std::unique_ptr<std::byte, Free>;

// Returns memory that is aligned and on large pages, as in a rank's arena.
Memory memory(int64_t bytes) {
  constexpr int64_t kLargePage = int64_t{1} << 21;
  const int64_t align = bytes < kLargePage ? kAlignBytes : kLargePage;
  const auto size = static_cast<size_t>(round_up(bytes + 1, align));
  void* found = std::aligned_alloc(static_cast<size_t>(align), size);
  if (align == kLargePage && found != nullptr) madvise(found, size, MADV_HUGEPAGE);
  return Memory(static_cast<std::byte*>(found));
}

// Returns small numbers of either type, because arbitrary bytes would be denormal or huge.
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

double seconds_of(const cpu::GemmShape& s, bool panels) {
  const Memory a = numbers(s.m * s.k, s.input), b = numbers(s.k * s.n, s.input), c = memory(s.m * s.n * 4);
  const Memory scratch =
      memory(panels ? cpu::driver_scratch_bytes(cpu::panel_backend(s), s) : cpu::gemm_scratch_bytes(s));
  if (panels) {
    const cpu::Backend& backend = cpu::panel_backend(s);
    return median_seconds([&] { cpu::run_driver(backend, s, a.get(), b.get(), nullptr, c.get(), scratch.get()); });
  }
  const cpu::Gemm made(s, a.get(), b.get(), nullptr, c.get(), scratch.get());
  return median_seconds([&] { made.run(); });
}

}  // namespace
}  // namespace prun

int main(int count, char** words) {
  using namespace prun;
  const std::string_view word = count > 1 ? words[1] : "";
  const double peak = peak_flops();
  const Bf16Loop loop = bf16_loop();
  std::printf("%g %g\n", peak, loop.run == nullptr ? peak : loop.flops / median_seconds(loop.run));
  std::fflush(stdout);
  cpu::GemmShape s;
  int form = 0, half = 0;
  while (std::scanf("%ld %ld %ld %d %d", &s.m, &s.n, &s.k, &form, &half) == 5) {
    s.transpose_b = form == 1, s.transpose_a = form == 2;
    s.input = half != 0 ? Dtype::bf16 : Dtype::f32;
    s.output = s.transpose_a ? Dtype::f32 : s.input;
    std::printf("%g\n", seconds_of(s, word == "panels"));
    std::fflush(stdout);
  }
  return 0;
}
