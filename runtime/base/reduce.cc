// One template per element type and operation, compiled for three levels of x86-64, one of which is chosen at load. On
// other CPUs, and under sanitizers (PRUN_SDK_ONE_LEVEL), there is one version.
//
// Reads two vectors of each input at a time into registers, then writes every output, because long runs of one input
// starve the prefetchers (half the speed with 8 ranks).
#include "prun/sdk/reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "prun/sdk/float16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace prun::sdk {
namespace {

// Compiler vector type. The compiler splits it on processors with shorter vectors.
template <class T, size_t kLanes>
struct Vector {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <class T, size_t kLanes>
using Vec = typename Vector<T, kLanes>::type;

template <class To, class From>
PRUN_SDK_INLINE To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// The storage and accumulation types of an element; integer sums and products wrap.
template <class T, class Wrapping>
struct Plain {
  static constexpr size_t kLanes = 64 / sizeof(T);
  static constexpr bool kInteger = std::is_integral_v<T>;
  using Stored = Vec<T, kLanes>;
  using Acc = Stored;
  using Wrap = Vec<Wrapping, kLanes>;
  static PRUN_SDK_INLINE Acc widen(const Stored& x) { return x; }
  static PRUN_SDK_INLINE Stored narrow(const Acc& x) { return x; }
};

// Averages of integers accumulate in 64 bits.
template <class T, class Sum64>
struct Wide {
  static constexpr size_t kLanes = 64 / sizeof(T);
  static constexpr bool kInteger = true;
  using Stored = Vec<T, kLanes>;
  using Acc = Vec<Sum64, kLanes>;
  using Wrap = Vec<uint64_t, kLanes>;
  static PRUN_SDK_INLINE Acc widen(const Stored& x) { return __builtin_convertvector(x, Acc); }
  static PRUN_SDK_INLINE Stored narrow(const Acc& x) { return __builtin_convertvector(x, Stored); }
};

struct Float16 {
  static constexpr size_t kLanes = 16;
  static constexpr bool kInteger = false;
  using Stored = Vec<uint16_t, kLanes>;
  using Acc = Vec<float, kLanes>;
  using Wrap = Acc;
  using Word = Vec<uint32_t, kLanes>;
};
struct Bf16 : Float16 {
  static PRUN_SDK_INLINE Acc widen(const Stored& x) { return bits<Acc>(__builtin_convertvector(x, Word) << 16); }
  static PRUN_SDK_INLINE Stored narrow(const Acc& x) {
    return __builtin_convertvector(round_to_bf16(bits<Word>(x)), Stored);
  }
};
struct F16 : Float16 {
  static PRUN_SDK_INLINE Acc widen(const Stored& x) {
    return bits<Acc>(widen_f16<Acc>(__builtin_convertvector(x, Word)));
  }
  static PRUN_SDK_INLINE Stored narrow(const Acc& x) {
    return __builtin_convertvector(round_to_f16<Acc>(bits<Word>(x)), Stored);
  }
};

struct Sum {
  template <class Type, class A>
  static PRUN_SDK_INLINE A apply(const A& a, const A& b) {
    using W = typename Type::Wrap;
    return bits<A>(bits<W>(a) + bits<W>(b));
  }
};
struct Prod {
  template <class Type, class A>
  static PRUN_SDK_INLINE A apply(const A& a, const A& b) {
    using W = typename Type::Wrap;
    return bits<A>(bits<W>(a) * bits<W>(b));
  }
};
// A comparison with a NaN is false, so a NaN in `a` is kept. The test b != b selects a NaN in `b`.
struct Min {
  template <class Type, class A>
  static PRUN_SDK_INLINE A apply(const A& a, const A& b) {
    return Type::kInteger ? (b < a ? b : a) : (((b < a) | (b != b)) ? b : a);
  }
};
struct Max {
  template <class Type, class A>
  static PRUN_SDK_INLINE A apply(const A& a, const A& b) {
    return Type::kInteger ? (a < b ? b : a) : (((a < b) | (b != b)) ? b : a);
  }
};

// The arguments of one call, independent of the element type. Sizes are in bytes.
struct Task {
  const void* const* from;
  int n;
  void* const* to;
  int m;
  size_t bytes;
  int divisor;  // divisor of an average; 0 = no average
  bool stream;  // requires that every output begins at a cache line
};

constexpr int kVectors = 2;  // vectors of each input at a time

template <class Type>
PRUN_SDK_INLINE void scale(typename Type::Acc& acc, int divisor) {
  if constexpr (Type::kInteger) {
    for (size_t i = 0; i < Type::kLanes; i++)
      acc[i] = static_cast<std::remove_reference_t<decltype(acc[i])>>(
          acc[i] / static_cast<std::remove_cvref_t<decltype(acc[i])>>(divisor));
  } else {
    using F = std::remove_cvref_t<decltype(acc[0])>;
    acc = acc * (F(1) / static_cast<F>(divisor));
  }
}

// Reduces kVectors vectors at `at`, or the last `bytes` of them.
template <class Type, class Op>
PRUN_SDK_INLINE void fold_group(const Task& t, size_t at, size_t bytes, typename Type::Stored* out) {
  using S = typename Type::Stored;
  S in[kVectors] = {};
  std::memcpy(in, static_cast<const std::byte*>(t.from[0]) + at, bytes);
  typename Type::Acc acc[kVectors];
  for (int v = 0; v < kVectors; v++) acc[v] = Type::widen(in[v]);
  for (int k = 1; k < t.n; k++) {
    std::memcpy(in, static_cast<const std::byte*>(t.from[k]) + at, bytes);
    for (int v = 0; v < kVectors; v++) acc[v] = Op::template apply<Type>(acc[v], Type::widen(in[v]));
  }
  for (int v = 0; v < kVectors; v++) {
    if (t.divisor) scale<Type>(acc[v], t.divisor);
    out[v] = Type::narrow(acc[v]);
  }
}

// Writes with non-temporal stores, of whole cache lines if the processor has them, because partial lines are a quarter
// slower.
template <int kLevel, class S>
PRUN_SDK_INLINE void stream_out(std::byte* to, const S (&group)[kVectors]) {
#if defined(__x86_64__)
#if !defined(__clang__)  // clang rejects fold_v4's target here; it builds this only for the fuzzer
  if constexpr (kLevel == 4) {
    for (int v = 0; v < kVectors; v++)
      asm volatile("vmovntdq %1, %0" : "=m"(reinterpret_cast<S*>(to)[v]) : "v"(group[v]));
    return;
  }
#endif
  for (size_t b = 0; b < sizeof group; b += 16) {
    __m128i x;
    std::memcpy(&x, reinterpret_cast<const std::byte*>(group) + b, sizeof x);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + b), x);
  }
#else
  std::memcpy(to, group, sizeof group);
#endif
}

template <class Type, class Op, int kLevel, bool kStream>
PRUN_SDK_INLINE size_t fold_groups(const Task& t) {
  typename Type::Stored out[kVectors];
  size_t at = 0;
  for (; at + sizeof out <= t.bytes; at += sizeof out) {
    fold_group<Type, Op>(t, at, sizeof out, out);
    for (int k = 0; k < t.m; k++) {
      std::byte* to = static_cast<std::byte*>(t.to[k]) + at;
      if constexpr (kStream)
        stream_out<kLevel>(to, out);
      else
        std::memcpy(to, out, sizeof out);
    }
  }
  return at;
}

template <class Type, class Op, int kLevel>
PRUN_SDK_INLINE void fold(const Task& t) {
  const size_t at = t.stream ? fold_groups<Type, Op, kLevel, true>(t) : fold_groups<Type, Op, kLevel, false>(t);
  if (at == t.bytes) return;
  typename Type::Stored out[kVectors];
  fold_group<Type, Op>(t, at, t.bytes - at, out);
  for (int k = 0; k < t.m; k++) std::memcpy(static_cast<std::byte*>(t.to[k]) + at, out, t.bytes - at);
}

using Fold = void (*)(const Task&);

template <class Type, class Op>
void fold_any(const Task& t) {
  fold<Type, Op, 1>(t);
}
#if defined(__x86_64__) && !defined(PRUN_SDK_ONE_LEVEL)
template <class Type, class Op>
__attribute__((target("avx2"))) void fold_v3(const Task& t) {
  fold<Type, Op, 3>(t);
}
template <class Type, class Op>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) void fold_v4(const Task& t) {
  fold<Type, Op, 4>(t);
}
#endif

template <class Type, class Op>
Fold choose() {
#if defined(__x86_64__) && !defined(PRUN_SDK_ONE_LEVEL)
  static const int level = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      return 4;
    return __builtin_cpu_supports("avx2") ? 3 : 1;
  }();
  if (level == 4) return fold_v4<Type, Op>;
  if (level == 3) return fold_v3<Type, Op>;
#endif
  return fold_any<Type, Op>;
}

// Cases in the order of prun_redop.
template <class Type, class Average = Type>
Fold choose(int redop) {
  switch (redop) {
    case PRUN_PROD:
      return choose<Type, Prod>();
    case PRUN_MIN:
      return choose<Type, Min>();
    case PRUN_MAX:
      return choose<Type, Max>();
    case PRUN_AVG:
      return choose<Average, Sum>();
    default:
      return choose<Type, Sum>();
  }
}

Fold choose(int dtype, int redop) {
  switch (dtype) {
    case PRUN_F64:
      return choose<Plain<double, double>>(redop);
    case PRUN_F32:
      return choose<Plain<float, float>>(redop);
    case PRUN_BF16:
      return choose<Bf16>(redop);
    case PRUN_F16:
      return choose<F16>(redop);
    case PRUN_I64:
      return choose<Plain<int64_t, uint64_t>>(redop);
    case PRUN_I32:
      return choose<Plain<int32_t, uint32_t>, Wide<int32_t, int64_t>>(redop);
    case PRUN_I8:
      return choose<Plain<int8_t, uint8_t>, Wide<int8_t, int64_t>>(redop);
    default:
      return choose<Plain<uint8_t, uint8_t>, Wide<uint8_t, uint64_t>>(redop);
  }
}

}  // namespace

void copy(void* to, const void* from, size_t bytes, bool stream) {
  if (bytes == 0 || to == from) return;
#if defined(__x86_64__)
  if (stream && bytes >= 256) {
    auto* t = static_cast<std::byte*>(to);
    auto* f = static_cast<const std::byte*>(from);
    const size_t head = (16 - reinterpret_cast<uintptr_t>(t) % 16) % 16;
    std::memcpy(t, f, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
      for (size_t k = 0; k < 64; k += 16)
        _mm_stream_si128(reinterpret_cast<__m128i*>(t + i + k),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(f + i + k)));
    }
    std::memcpy(t + i, f + i, bytes - i);
    _mm_sfence();
    return;
  }
#else
  (void)stream;
#endif
  std::memcpy(to, from, bytes);
}

void reduce(const Reduction& how, const void* const* from, int n, void* const* to, int m, size_t count, bool stream) {
  for (int k = 0; k < m; k++) stream &= reinterpret_cast<uintptr_t>(to[k]) % 64 == 0;
  const int divisor = how.redop == PRUN_AVG ? how.divisor : 0;
  choose(how.dtype, how.redop)(Task{from, n, to, m, count * dtype_bytes(how.dtype), divisor, stream});
#if defined(__x86_64__)
  if (stream) _mm_sfence();
#endif
}

}  // namespace prun::sdk
