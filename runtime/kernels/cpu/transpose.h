// Transposes blocks of 8 x 8 elements of four bytes in registers.
#pragma once
#include "kernels/cpu/simd.h"

namespace prun::cpu {

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

template <class T>
PRUN_INLINE void load_eight(const T* from, Eight& to) {
  float x[8];
  for (int i = 0; i < 8; ++i) x[i] = load(from[i]);
  to = *reinterpret_cast<const Eight*>(x);
}

// Interleaves elements, then pairs of elements, then halves.
PRUN_INLINE void transpose(Eight (&r)[8]) {
  Eight t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      u[i + 2 * j] = __builtin_shufflevector(t[i + j], t[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      u[i + 2 * j + 1] = __builtin_shufflevector(t[i + j], t[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = __builtin_shufflevector(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = __builtin_shufflevector(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

}  // namespace prun::cpu
