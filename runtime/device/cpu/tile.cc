// See tile.h. The block of C that stays in registers depends on the vector length, so here the versions for each
// level of x86-64 are separate instances of one template instead of PRUN_CLONES.
#include "device/cpu/tile.h"

#include "device/cpu/simd.h"

namespace prun::cpu {
namespace {

template <int kLanes>
struct Vector {
  typedef float type __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
};

// kRows x (kVectors · kLanes) of C in registers: each element of A is broadcast once for kVectors multiply-adds.
template <int kLanes, int kRows, int kVectors>
PRUN_INLINE void block(const TileProduct& t, int64_t i, int64_t j) {
  using V = typename Vector<kLanes>::type;
  V sum[kRows][kVectors];
  float* c = t.c + i * t.c_row + j;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      if (t.accumulate)
        sum[r][v] = *reinterpret_cast<const V*>(c + r * t.c_row + v * kLanes);
      else
        sum[r][v] = V{};
    }
  }
  const float* a = t.a + i * t.a_row;
  const float* b = t.b + j;
  for (int64_t p = 0; p < t.k; ++p, a += t.a_column, b += t.b_row) {
    V row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = *reinterpret_cast<const V*>(b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r * t.a_row];
      for (int v = 0; v < kVectors; ++v) sum[r][v] += x * row[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<V*>(c + r * t.c_row + v * kLanes) = sum[r][v];
  }
}

template <int kLanes, int kRows, int kVectors>
PRUN_INLINE void columns(const TileProduct& t, int64_t j) {
  int64_t i = 0;
  for (; i + kRows <= t.m; i += kRows) block<kLanes, kRows, kVectors>(t, i, j);
  for (; i + 2 <= t.m; i += 2) block<kLanes, 2, kVectors>(t, i, j);
  if (i < t.m) block<kLanes, 1, kVectors>(t, i, j);
}

template <int kLanes, int kRows, int kVectors>
PRUN_INLINE void product(const TileProduct& t) {
  int64_t j = 0;
  for (; j + kLanes * kVectors <= t.n; j += kLanes * kVectors) columns<kLanes, kRows, kVectors>(t, j);
  for (; j < t.n; j += kLanes) columns<kLanes, kRows * kVectors, 1>(t, j);
}

void product_default(const TileProduct& t) { product<4, 4, 2>(t); }

#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v3"))) void product_v3(const TileProduct& t) { product<8, 4, 2>(t); }
__attribute__((target("arch=x86-64-v4,prefer-vector-width=512"))) void product_v4(const TileProduct& t) {
  product<16, 8, 2>(t);
}
#endif

using Product = void (*)(const TileProduct&);

Product choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v4")) return product_v4;
  if (__builtin_cpu_supports("x86-64-v3")) return product_v3;
#endif
  return product_default;
}

}  // namespace

void tile_product(const TileProduct& product) {
  static const Product chosen = choose();
  chosen(product);
}

}  // namespace prun::cpu
