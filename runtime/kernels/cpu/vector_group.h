// Several vectors on which each operation runs for all vectors before the next operation, which hides its latency. An
// out-of-order CPU overlaps independent vectors by itself, but only within its window, which a few vectors of a long
// formula fill.
//
// Functions of vector_math.h with the comment "Accepts groups" take a Group in place of a vector.
#pragma once
#include <cstddef>

#include "base/vector_clones.h"

namespace prun::cpu {

template <class V, int n>
struct Group {
  V v[n];

  // Returns a group of f(k).
  template <class F>
  PRUN_INLINE static Group of(const F& f) {
    Group all;
#pragma GCC unroll 8
    for (int k = 0; k < n; ++k) all.v[k] = f(k);
    return all;
  }
  PRUN_INLINE friend Group operator+(const Group& a, const Group& b) {
    return of([&](int k) PRUN_INLINED { return a.v[k] + b.v[k]; });
  }
  PRUN_INLINE friend Group operator-(const Group& a, const Group& b) {
    return of([&](int k) PRUN_INLINED { return a.v[k] - b.v[k]; });
  }
  PRUN_INLINE friend Group operator*(const Group& a, const Group& b) {
    return of([&](int k) PRUN_INLINED { return a.v[k] * b.v[k]; });
  }
  // Operations of a group with one number.
  PRUN_INLINE friend Group operator+(float a, const Group& b) { return all_of(a) + b; }
  PRUN_INLINE friend Group operator-(float a, const Group& b) { return all_of(a) - b; }
  PRUN_INLINE friend Group operator*(float a, const Group& b) { return all_of(a) * b; }
  PRUN_INLINE friend Group operator+(const Group& a, float b) { return a + all_of(b); }
  PRUN_INLINE friend Group operator-(const Group& a, float b) { return a - all_of(b); }
  PRUN_INLINE friend Group operator*(const Group& a, float b) { return a * all_of(b); }

 private:
  PRUN_INLINE static Group all_of(float x) {
    return of([=](int) PRUN_INLINED { return V{} + x; });
  }
};

// Applies f to a vector or to each vector of a group, or to pairs of two groups; for operations other than + - and *.
template <class F, class V>
PRUN_INLINE V each_of(const F& f, const V& x) {
  return f(x);
}
template <class F, class V, int n>
PRUN_INLINE Group<V, n> each_of(const F& f, const Group<V, n>& x) {
  return Group<V, n>::of([&](int k) PRUN_INLINED { return f(x.v[k]); });
}
template <class F, class V>
PRUN_INLINE V each_of(const F& f, const V& x, const V& y) {
  return f(x, y);
}
template <class F, class V, int n>
PRUN_INLINE Group<V, n> each_of(const F& f, const Group<V, n>& x, const Group<V, n>& y) {
  return Group<V, n>::of([&](int k) PRUN_INLINED { return f(x.v[k], y.v[k]); });
}

// Bytes of a vector, or of each in a group.
template <class V>
inline constexpr size_t kVectorBytes = sizeof(V);
template <class V, int n>
inline constexpr size_t kVectorBytes<Group<V, n>> = sizeof(V);

}  // namespace prun::cpu
