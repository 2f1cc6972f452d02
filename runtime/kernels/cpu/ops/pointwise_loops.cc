// See pointwise_loops.h. Loops over vectors (elementwise.h), or loops that the compiler vectorizes.
#include "kernels/cpu/ops/pointwise_loops.h"

#include <cmath>

#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/tanh.h"
#include "kernels/cpu/vector_math.h"

namespace prun::cpu {
namespace {

using sdk::Pointwise;

template <class V>
PRUN_INLINE V one_if(const auto& condition) {
  return condition ? V{} + 1.0f : V{};
}

template <class V>
PRUN_INLINE V log_f32(V x) {
  constexpr float kLn2 = 0.693147181f, kInfinity = __builtin_inff();
  const V log = log2_f32(x) * kLn2;
  const V right = x == 0.0f ? V{} - kInfinity : (x == kInfinity ? x : log);
  return x < 0.0f ? V{} + __builtin_nanf("") : right;
}

// Returns log(1 + e^-|x|) + max(x, 0). log1p(t) is log(u)·t/(u - 1) with the rounded u = 1 + t (Higham, Accuracy and
// Stability of Numerical Algorithms, 1.14.1).
template <class V>
PRUN_INLINE V softplus_f32(V x) {
  const V t = exp_f32(V(x < 0 ? x : -x)), u = 1.0f + t, rounded = u - 1.0f;
  const V small = log2_f32(u) * 0.693147181f * (t / (rounded == 0.0f ? V{} + 1.0f : rounded));
  return (x > 0.0f ? x : x * 0.0f) + (rounded == 0.0f ? t : small);
}

// Loops that the compiler vectorizes, or that call the C library.
template <class Y>
PRUN_CLONES static void sqrt_range(const float* a, Y* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) narrow(y[i], __builtin_sqrtf(a[i]));
}
template <class Y>
PRUN_CLONES static void rsqrt_range(const float* a, Y* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) narrow(y[i], 1.0f / __builtin_sqrtf(a[i]));
}
template <class Y, Pointwise code>
void scalar_loop(const float* a, const float* b, const float* c, void* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    narrow(static_cast<Y*>(y)[i], sdk::pointwise_value(code, a[i], b == nullptr ? 0 : b[i], c == nullptr ? 0 : c[i]));
}

#define PRUN_UNARY(...)                                                                                     \
  [](const float* a, const float*, const float*, void* y, int64_t n) {                                      \
    map_range([]<class V>(const V& x) PRUN_INLINED -> V { return __VA_ARGS__; }, n, static_cast<Y*>(y), a); \
  }
#define PRUN_BINARY(...)                                                                                               \
  [](const float* a, const float* b, const float*, void* y, int64_t n) {                                               \
    map_range([]<class V>(const V& p, const V& q) PRUN_INLINED -> V { return __VA_ARGS__; }, n, static_cast<Y*>(y), a, \
              b);                                                                                                      \
  }

#define PRUN_TERNARY(...)                                                                                   \
  [](const float* a, const float* b, const float* c, void* y, int64_t n) {                                  \
    map_range([]<class V>(const V& p, const V& q, const V& r) PRUN_INLINED -> V { return __VA_ARGS__; }, n, \
              static_cast<Y*>(y), a, b, c);                                                                 \
  }

// Returns a sigmoid; `T`: bf16 if the result is rounded to it next. `rough`: of a bf16 program.
template <class T, bool rough, class V>
PRUN_INLINE V gate_of(V x) {
  if constexpr (rough && !std::is_same_v<T, bf16>)
    return x != x ? x : V(reciprocal_f32(V(1.0f + sigmoid_power<bf16>(x))));
  else
    return x != x ? x : V(sigmoid_of<T>(x));
}

}  // namespace

template <class Y>
PointwiseLoop pointwise_chain(PointwiseChain chain, bool rough) {
  switch (chain) {
    case PointwiseChain::sigmoid_of_product:
      if (rough) return PRUN_BINARY(gate_of<Y, true>(V(p * q)));
      return PRUN_BINARY(gate_of<float, false>(V(p * q)));
    case PointwiseChain::gate:
      if (rough) return PRUN_TERNARY(r * gate_of<Y, true>(V(p * q)));
      return PRUN_TERNARY(r * gate_of<float, false>(V(p * q)));
    case PointwiseChain::product:
      return PRUN_TERNARY((p * q) * r);
    case PointwiseChain::sum:
      return PRUN_TERNARY((p + q) * r);
    case PointwiseChain::difference:
      return PRUN_TERNARY((p - q) * r);
  }
  return nullptr;
}

template <class T>
void gate_of_input(const T* x, const float* b, T* y, int64_t n) {
  map_range([by = b[0]]<class V>(const V& one)
                PRUN_INLINED -> V { return one * gate_of<T, std::is_same_v<T, bf16>>(V(one * by)); },
            n, y, x);
}
template void gate_of_input<float>(const float*, const float*, float*, int64_t);
template void gate_of_input<bf16>(const bf16*, const float*, bf16*, int64_t);

template PointwiseLoop pointwise_chain<float>(PointwiseChain, bool);
template PointwiseLoop pointwise_chain<bf16>(PointwiseChain, bool);

template <class Y>
PointwiseLoop pointwise_loop(Pointwise code, bool rough) {
  switch (code) {
    case Pointwise::add:
      return PRUN_BINARY(p + q);
    case Pointwise::sub:
      return PRUN_BINARY(p - q);
    case Pointwise::mul:
      return PRUN_BINARY(p * q);
    case Pointwise::div:
      return PRUN_BINARY(p / q);
    case Pointwise::minimum:
      return PRUN_BINARY(p != p ? p : V(p < q ? p : q));
    case Pointwise::maximum:
      return PRUN_BINARY(p != p ? p : V(p > q ? p : q));
    case Pointwise::less:
      return PRUN_BINARY(one_if<V>(p < q));
    case Pointwise::less_equal:
      return PRUN_BINARY(one_if<V>(p <= q));
    case Pointwise::equal:
      return PRUN_BINARY(one_if<V>(p == q));
    case Pointwise::where:
      return [](const float* a, const float* b, const float* c, void* y, int64_t n) {
        map_range([]<class V>(const V& p, const V& q, const V& r) PRUN_INLINED -> V { return p != 0.0f ? q : r; }, n,
                  static_cast<Y*>(y), a, b, c);
      };
    case Pointwise::exp:
      return PRUN_UNARY(exp_f32(x));
    case Pointwise::log:
      return PRUN_UNARY(log_f32(x));
    case Pointwise::sqrt:
      return
          [](const float* a, const float*, const float*, void* y, int64_t n) { sqrt_range(a, static_cast<Y*>(y), n); };
    case Pointwise::rsqrt:
      return
          [](const float* a, const float*, const float*, void* y, int64_t n) { rsqrt_range(a, static_cast<Y*>(y), n); };
    case Pointwise::abs:
      return PRUN_UNARY(x < 0.0f ? V(-x) : x);
    case Pointwise::sign:
      return PRUN_UNARY(x > 0.0f ? V{} + 1.0f : V(x < 0.0f ? V{} - 1.0f : x));
    case Pointwise::sigmoid:
      if (rough) return PRUN_UNARY(x != x ? x : V(reciprocal_f32(V(1.0f + sigmoid_power<bf16>(x)))));
      return PRUN_UNARY(x != x ? x : V(sigmoid_of<float>(x)));
    case Pointwise::tanh:
      return PRUN_UNARY(tanh_f32(x));
    case Pointwise::softplus:
      return PRUN_UNARY(softplus_f32(x));
    case Pointwise::relu:
      return PRUN_UNARY(x < 0.0f ? V{} : x);
    case Pointwise::pow:
      return scalar_loop<Y, Pointwise::pow>;
    case Pointwise::sin:
      return scalar_loop<Y, Pointwise::sin>;
    case Pointwise::cos:
      return scalar_loop<Y, Pointwise::cos>;
  }
  return nullptr;
}

template PointwiseLoop pointwise_loop<float>(Pointwise, bool);
template PointwiseLoop pointwise_loop<bf16>(Pointwise, bool);

}  // namespace prun::cpu
