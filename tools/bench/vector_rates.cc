// See vector_rates.h.
#include "tools/bench/vector_rates.h"

#include <benchmark/benchmark.h>

#include "base/vector_asm.h"
#include "kernels/cpu/vectors.h"

namespace prun {
namespace {

using cpu::Floats;

// Twelve vectors, each passed through f repeatedly: they hide the latency of any CPU that has these vectors. f's result
// is used each time.
constexpr int64_t kChains = 12, kTurns = 1 << 12;

template <int lanes, class F>
PRUN_INLINE void chains(const F& f) {
  Floats<lanes> all[kChains];
#pragma GCC unroll 12
  for (int64_t c = 0; c < kChains; ++c) all[c] = Floats<lanes>{} + (1.0f + static_cast<float>(c));
  for (int64_t turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 12
    for (int64_t c = 0; c < kChains; ++c) {
      f(all[c]);
      asm volatile("" : "+v"(all[c]));
    }
  }
}

// f.operator()<lanes>(x) changes x by the instruction to measure.
template <class F>
void rate(benchmark::State& state, const F& f) {
  int64_t width = 0;
  for (auto _ : state)
    cpu::with_lanes([&]<int lanes>() PRUN_INLINED {
      chains<lanes>([&](Floats<lanes>& x) PRUN_INLINED { f.template operator()<lanes>(x); });
      width = lanes;
    });
  state.counters["lanes"] = static_cast<double>(kChains * kTurns * width);
}

template <int lanes>
using Words = typename cpu::Lanes<lanes>::Words;

constexpr auto kMultiplyAdd = []<int lanes>(Floats<lanes>& x) PRUN_INLINED { x = x * 0.999f + 0.001f; };
constexpr auto kSimple = []<int lanes>(Floats<lanes>& x) PRUN_INLINED {
  x = __builtin_bit_cast(Floats<lanes>, __builtin_bit_cast(Words<lanes>, x) + 1u);
};
constexpr auto kDivide = []<int lanes>(Floats<lanes>& x) PRUN_INLINED { x = 1.5f / x; };
constexpr auto kRound = []<int lanes>(Floats<lanes>& x) PRUN_INLINED {
  x = __builtin_bit_cast(Floats<lanes>, sdk::round_to_bf16(__builtin_bit_cast(Words<lanes>, x)));
};
// Two simple instructions per rounded vector, which compete for the same units.
constexpr auto kBeside = []<int lanes>(Floats<lanes>& x, int count) PRUN_INLINED {
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) {
    kSimple.template operator()<lanes>(x);
    asm volatile("" : "+v"(x));
  }
};
constexpr auto kRoundBeside = []<int lanes>(Floats<lanes>& x) PRUN_INLINED {
  kRound.template operator()<lanes>(x);
  kBeside.template operator()<lanes>(x, 2);
};
#if defined(__x86_64__)
constexpr auto kRoot = []<int lanes>(Floats<lanes>& x) PRUN_INLINED {
  if constexpr (lanes > 4) asm("vsqrtps %0, %0" : "+v"(x));
};
constexpr auto kWordProduct = []<int lanes>(Floats<lanes>& x) PRUN_INLINED {
  if constexpr (lanes > 4) asm("vpmuludq %0, %0, %0" : "+v"(x));
};
// Rounds two vectors at once.
constexpr auto kRoundPair = []<int lanes>(Floats<lanes>& x) PRUN_INLINED {
  if constexpr (lanes == 16) asm("vcvtne2ps2bf16 %0, %0, %0" : "+v"(x));
};
constexpr auto kRoundPairBeside = []<int lanes>(Floats<lanes>& x) PRUN_INLINED {
  kRoundPair.template operator()<lanes>(x);
  kBeside.template operator()<lanes>(x, 4);
};
#endif

}  // namespace

void register_vector_rates() {
  const auto add = [](const char* name, const auto& f, double vectors = 1) {
    benchmark::RegisterBenchmark(name, [f, vectors](benchmark::State& state) {
      rate(state, f);
      state.counters["lanes"] = state.counters["lanes"] * vectors;
    })->Unit(benchmark::kMicrosecond);
  };
  add("rate/multiply_add", kMultiplyAdd);
  add("rate/simple", kSimple);
  add("rate/divide", kDivide);
#if defined(__x86_64__)
  if (kVectorAsm && cpu::instruction_set() != cpu::InstructionSet::any) {
    add("rate/root", kRoot);
    add("rate/word_product", kWordProduct);
  }
  if (kVectorAsm && cpu::has_avx512_bf16()) {
    add("rate/round", kRoundPair, 2);
    return add("rate/round_beside", kRoundPairBeside, 2);
  }
#endif
  add("rate/round", kRound);
  add("rate/round_beside", kRoundBeside);
}

}  // namespace prun
