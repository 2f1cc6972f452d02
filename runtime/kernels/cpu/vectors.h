// Vectors of floats, as long as those of the CPU, and code that is compiled once for each length.
//
// Loops over elements of one type vectorize well by themselves (PRUN_CLONES). Reductions and loops over bf16, whose
// elements are half as wide as the arithmetic, do not: they use these vectors.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/vector_asm.h"
#include "base/vector_clones.h"
#include "base/vector_levels.h"
#include "device/bf16.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/kernel_choice.h"
#include "kernels/cpu/simd.h"

namespace prun::cpu {

template <int lanes>
struct Lanes {
  typedef float Floats __attribute__((vector_size(4 * lanes)));
  typedef uint32_t Words __attribute__((vector_size(4 * lanes)));
  typedef uint16_t Halves __attribute__((vector_size(2 * lanes)));
};
template <int lanes>
using Floats = typename Lanes<lanes>::Floats;

// Runs `body.operator()<lanes>()` (base/vector_levels.h), compiled for the vectors of the job's kernels.
template <class Body>
void with_lanes(const Body& body) {
#if defined(__x86_64__)
  const InstructionSet found = instruction_set();
  if (found == InstructionSet::avx512) return with_16_lanes(body);
  if (found == InstructionSet::avx2) return with_8_lanes(body);
#endif
  body.template operator()<4>();
}

template <int lanes>
PRUN_INLINE Floats<lanes> load_lanes(const float* from) {
  Floats<lanes> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
// GCC 12 makes several instructions of a conversion to twice or half the size; AVX2 and AVX-512 have one.
template <int lanes>
PRUN_INLINE Floats<lanes> load_lanes(const bf16* from) {
  typename Lanes<lanes>::Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  typename Lanes<lanes>::Words words;
  if constexpr (kVectorAsm && lanes > 4)
    asm("vpmovzxwd %1, %0" : "=v"(words) : "v"(halves));
  else
    words = __builtin_convertvector(halves, typename Lanes<lanes>::Words);
  return __builtin_bit_cast(Floats<lanes>, words << 16);
}
template <int lanes>
PRUN_INLINE void store_lanes(float* to, const Floats<lanes>& v) {
  std::memcpy(to, &v, sizeof v);
}
// Rounds a vector to nearest, if possible with AVX512_BF16's instruction, which flushes subnormal numbers to 0.
template <int lanes>
PRUN_INLINE void store_lanes(bf16* to, const Floats<lanes>& v) {
  if constexpr (kVectorAsm && lanes == 16) {
    if (rounds_to_bf16) {
      typename Lanes<lanes>::Halves halves;
      asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(v));
      std::memcpy(static_cast<void*>(to), &halves, sizeof halves);
      return;
    }
  }
  const auto words = sdk::round_to_bf16(__builtin_bit_cast(typename Lanes<lanes>::Words, v));
  typename Lanes<lanes>::Halves halves;
  if constexpr (kVectorAsm && lanes == 16)
    asm("vpmovdw %1, %0" : "=v"(halves) : "v"(words));
  else
    halves = __builtin_convertvector(words, typename Lanes<lanes>::Halves);
  std::memcpy(static_cast<void*>(to), &halves, sizeof halves);
}

// A half of a vector as f64.
template <int lanes>
struct DoublesOf {
  typedef double Vector __attribute__((vector_size(4 * lanes)));
  typedef float Half __attribute__((vector_size(2 * lanes)));
};
template <int lanes>
using Doubles = typename DoublesOf<lanes>::Vector;
template <int lanes>
PRUN_INLINE Doubles<lanes> doubles_of_half(const Floats<lanes>& v, int half) {
  typename DoublesOf<lanes>::Half floats;
  std::memcpy(&floats, reinterpret_cast<const char*>(&v) + half * sizeof floats, sizeof floats);
  if constexpr (kVectorAsm && lanes > 4) {
    Doubles<lanes> doubles;
    asm("vcvtps2pd %1, %0" : "=v"(doubles) : "v"(floats));
    return doubles;
  }
  return __builtin_convertvector(floats, Doubles<lanes>);
}
template <int lanes>
PRUN_INLINE Doubles<lanes> lower_doubles(const Floats<lanes>& v) {
  return doubles_of_half<lanes>(v, 0);
}
template <int lanes>
PRUN_INLINE Doubles<lanes> upper_doubles(const Floats<lanes>& v) {
  return doubles_of_half<lanes>(v, 1);
}

// Elements [i, i + lanes) of arrays.
template <int lanes>
struct Whole {
  int64_t i;
  template <class T>
  PRUN_INLINE Floats<lanes> load(const T* x) const {
    return load_lanes<lanes>(x + i);
  }
  template <class T>
  PRUN_INLINE void store(T* y, const Floats<lanes>& v) const {
    store_lanes<lanes>(y + i, v);
  }
  PRUN_INLINE Floats<lanes> only(const Floats<lanes>& v) const { return v; }
};
// Elements [i, i + count) of arrays, fewer than a vector has: the lanes after them load as 0 and are not stored.
template <int lanes>
struct Part {
  int64_t i, count;
  template <class T>
  PRUN_INLINE Floats<lanes> load(const T* x) const {
    T some[lanes] = {};
    std::memcpy(some, x + i, count * sizeof(T));
    return load_lanes<lanes>(some);
  }
  template <class T>
  PRUN_INLINE void store(T* y, const Floats<lanes>& v) const {
    T some[lanes];
    store_lanes<lanes>(some, v);
    std::memcpy(y + i, some, count * sizeof(T));
  }
  // Sets the lanes after the elements to 0.
  PRUN_INLINE Floats<lanes> only(const Floats<lanes>& v) const {
    float some[lanes] = {};
    std::memcpy(some, &v, count * sizeof(float));
    return load_lanes<lanes>(some);
  }
};
// Calls f(at) for the elements [0, n) of arrays, where `at` is a Whole or, at the end, a Part of them.
template <int lanes, class F>
PRUN_INLINE void for_lanes(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(Whole<lanes>{i});
  if (i < n) f(Part<lanes>{i, n - i});
}

// Prefetches the lines of `count` elements.
template <int64_t count, class T>
PRUN_INLINE void prefetch_lines(const T* x) {
  constexpr int64_t kLine = 64 / sizeof(T);
#pragma GCC unroll 8
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(x + i);
}
// Prefetches the lines of `count` elements 1 KiB after x. A loop with much arithmetic per element fills the CPU's
// out-of-order window with a few vectors, so its cache misses would be serialized.
template <int64_t count, class T>
PRUN_INLINE void prefetch_ahead(const T* x) {
  constexpr int64_t kAhead = 1024 / sizeof(T);
  prefetch_lines<count>(x + kAhead);
}

// Load and store 2 · lanes numbers of bf16 as two vectors, of even and of odd positions. No element changes its lane,
// because shuffles would take longer than the arithmetic here.
template <int lanes>
PRUN_INLINE typename Lanes<lanes>::Words load_words(const bf16* from) {
  typename Lanes<lanes>::Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}
template <int lanes>
PRUN_INLINE Floats<lanes> load_even(const bf16* from) {
  return __builtin_bit_cast(Floats<lanes>, load_words<lanes>(from) << 16);
}
template <int lanes>
PRUN_INLINE Floats<lanes> load_odd(const bf16* from) {
  return __builtin_bit_cast(Floats<lanes>, load_words<lanes>(from) & 0xffff0000u);
}
// 0, 16, 1, 17, ...: the permutation that interleaves the halves of a vector.
struct alignas(64) Interleaved {
  uint16_t places[32];
  constexpr Interleaved() : places() {
    for (uint16_t i = 0; i < 32; ++i) places[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
  }
};
inline constexpr Interleaved kInterleaved;
template <int lanes>
PRUN_INLINE void store_even_odd(bf16* to, const Floats<lanes>& even, const Floats<lanes>& odd) {
  using Words = typename Lanes<lanes>::Words;
  if constexpr (kVectorAsm && lanes == 16) {
    if (rounds_to_bf16) {
      Words both;
      asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(odd), "v"(even));
      Words places;
      std::memcpy(&places, &kInterleaved, sizeof places);
      asm("vpermw %1, %2, %0" : "=v"(both) : "v"(both), "v"(places));
      std::memcpy(static_cast<void*>(to), &both, sizeof both);
      return;
    }
  }
  // A NaN needs no case of its own: its low half is zero, because all operands came from bf16.
  const auto rounded = [](Words x) PRUN_INLINED { return x + (((x >> 16) & 1u) + 0x7fffu); };
  const Words words =
      (rounded(__builtin_bit_cast(Words, even)) >> 16) | (rounded(__builtin_bit_cast(Words, odd)) & 0xffff0000u);
  std::memcpy(static_cast<void*>(to), &words, sizeof words);
}

// Two vectors. Operations must not depend on the order of elements.
template <int lanes>
struct Two {
  Floats<lanes> v[2];

  // Returns f(a, b) of both vectors; b is two vectors, or a number for all.
  template <class B, class F>
  PRUN_INLINE static Two of(const Two& a, const B& b, const F& f) {
    if constexpr (std::is_same_v<B, Two>)
      return {{f(a.v[0], b.v[0]), f(a.v[1], b.v[1])}};
    else
      return {{f(a.v[0], b), f(a.v[1], b)}};
  }
  template <class B>
  PRUN_INLINE friend Two operator+(const Two& a, const B& b) {
    return of(a, b, [](const auto& x, const auto& y) PRUN_INLINED { return x + y; });
  }
  template <class B>
  PRUN_INLINE friend Two operator-(const Two& a, const B& b) {
    return of(a, b, [](const auto& x, const auto& y) PRUN_INLINED { return x - y; });
  }
  template <class B>
  PRUN_INLINE friend Two operator*(const Two& a, const B& b) {
    return of(a, b, [](const auto& x, const auto& y) PRUN_INLINED { return x * y; });
  }
  PRUN_INLINE Two& operator+=(const Two& more) { return *this = *this + more; }
  PRUN_INLINE Two& operator+=(const Floats<lanes>& more) {
    v[0] += more;
    return *this;
  }
  PRUN_INLINE friend Floats<lanes>& operator+=(Floats<lanes>& sum, const Two& more) {
    sum += more.v[0];
    return sum += more.v[1];
  }
};
// Returns f(v) of a vector, or of each of two.
template <class V, class F>
PRUN_INLINE V each(const V& v, const F& f) {
  if constexpr (requires { v.v; })
    return {{f(v.v[0]), f(v.v[1])}};
  else
    return f(v);
}
// Elements [i, i + 2 · lanes) of arrays of T and of float arrays that go with them. If T is bf16, elements of even
// positions precede those of odd positions, and the float arrays are stored in this order.
template <int lanes, class T>
struct WholeTwo {
  int64_t i;
  PRUN_INLINE Two<lanes> load(const float* x) const {
    return {{load_lanes<lanes>(x + i), load_lanes<lanes>(x + i + lanes)}};
  }
  PRUN_INLINE Two<lanes> load(const bf16* x) const { return {{load_even<lanes>(x + i), load_odd<lanes>(x + i)}}; }
  PRUN_INLINE void store(float* y, const Two<lanes>& all) const {
    for (int k = 0; k < 2; ++k) store_lanes<lanes>(y + i + k * lanes, all.v[k]);
  }
  PRUN_INLINE void store(bf16* y, const Two<lanes>& all) const { store_even_odd<lanes>(y + i, all.v[0], all.v[1]); }
  PRUN_INLINE const Two<lanes>& only(const Two<lanes>& all) const { return all; }
  // Returns the position of element j in the float arrays.
  static int64_t place(int64_t j) {
    constexpr int64_t kBoth = 2 * lanes;
    return std::is_same_v<T, bf16> ? j / kBoth * kBoth + j % 2 * lanes + j % kBoth / 2 : j;
  }
};
// Calls f(at) for the elements [0, n) of arrays of T, where `at` is a WholeTwo or, at the end, a Whole or a Part.
template <int lanes, class T, class F>
PRUN_INLINE void for_two_lanes(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) f(WholeTwo<lanes, T>{i});
  if (i + lanes <= n) {
    f(Whole<lanes>{i});
    i += lanes;
  }
  if (i < n) f(Part<lanes>{i, n - i});
}

inline constexpr auto kAdd = [](auto a, auto b) PRUN_INLINED { return a + b; };
// Computes the maximum by one instruction, where GCC 12 makes a comparison and a select. If either is NaN, the result
// is `a`.
inline constexpr auto kLarger = []<class V>(const V& a, const V& b) PRUN_INLINED {
  if constexpr (kVectorAsm && sizeof(V) >= 32) {
    V found;
    asm("vmaxps %1, %2, %0" : "=v"(found) : "v"(a), "v"(b));
    return found;
  } else {
    return b > a ? b : a;
  }
};
// Reduces all elements to one.
template <int lanes, class Of>
PRUN_INLINE float fold(const Floats<lanes>& v, Of of) {
  if constexpr (lanes == 4) {
    return of(of(v[0], v[2]), of(v[1], v[3]));
  } else {
    Floats<lanes / 2> low, high;
    std::memcpy(&low, &v, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
    return fold<lanes / 2>(of(low, high), of);
  }
}
// Sums the elements of each of four vectors, bitwise identical to `fold`: a vector holds a quarter of each.
PRUN_INLINE void fold_four(const Floats<16>* v, float* to) {
  const auto halves = [](const auto& a, const auto& b) PRUN_INLINED {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  };
  const auto ab = halves(v[0], v[1]), cd = halves(v[2], v[3]);
  const auto quarters = __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                        __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  const auto pairs =
      quarters + __builtin_shufflevector(quarters, quarters, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  const auto all = pairs + __builtin_shufflevector(pairs, pairs, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  const Floats<4> sums = __builtin_shufflevector(all, all, 0, 4, 8, 12);
  std::memcpy(to, &sums, sizeof sums);
}
// Sums the elements of each of n vectors.
template <int lanes>
PRUN_INLINE void fold_rows(const Floats<lanes>* v, int64_t n, float* to) {
  int64_t r = 0;
  if constexpr (lanes == 16)
    for (; r + 4 <= n; r += 4) fold_four(v + r, to + r);
  for (; r < n; ++r) to[r] = fold<lanes>(v[r], kAdd);
}
// Returns the sum of f(at) over the elements [0, n), in four accumulators to hide the latency of additions.
template <int lanes, class F>
PRUN_INLINE float sum_lanes(int64_t n, const F& f) {
  Floats<lanes> part[4] = {};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (int k = 0; k < 4; ++k) part[k] += f(Whole<lanes>{i + k * lanes});
  }
  for (; i + lanes <= n; i += lanes) part[0] += f(Whole<lanes>{i});
  if (i < n) {
    const Part<lanes> rest{i, n - i};
    part[1] += rest.only(f(rest));
  }
  return fold<lanes>((part[0] + part[1]) + (part[2] + part[3]), kAdd);
}
// Returns the largest of n > 0 elements; unspecified if one is NaN.
template <int lanes, class T>
PRUN_INLINE float largest_lanes(const T* x, int64_t n) {
  using At = WholeTwo<lanes, T>;
  constexpr int64_t kBoth = 2 * lanes;
  if (n < kBoth) {
    float largest = cpu::load(x[0]);
    for (int64_t i = 1; i < n; ++i) largest = kLarger(largest, cpu::load(x[i]));
    return largest;
  }
  Two<lanes> part[2] = {At{0}.load(x), At{n - kBoth}.load(x)};
  const auto take = [&](int k, int64_t i) PRUN_INLINED { part[k] = Two<lanes>::of(part[k], At{i}.load(x), kLarger); };
  int64_t i = 0;
  for (; i + 2 * kBoth <= n; i += 2 * kBoth) take(0, i), take(1, i + kBoth);
  if (i + kBoth <= n) take(0, i);
  part[0] = Two<lanes>::of(part[0], part[1], kLarger);
  return fold<lanes>(kLarger(part[0].v[0], part[0].v[1]), kLarger);
}

}  // namespace prun::cpu
