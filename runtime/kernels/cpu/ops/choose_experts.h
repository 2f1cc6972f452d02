// The choice of experts, shared by route and its gradient: the k largest logits of a row, largest first; the lower
// expert of equal ones first.
#pragma once
#include "kernels/cpu/simd.h"

namespace prun::cpu {

// chosen[0..k) of [0, experts), all different whatever the logits are (NaN too); k <= experts.
template <class T>
PRUN_INLINE void choose_experts(const T* logits, int64_t experts, int64_t k, int32_t* chosen) {
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = -1;
    for (int32_t e = 0; e < experts; ++e) {
      bool taken = false;
      for (int64_t i = 0; i < j; ++i) taken = taken || chosen[i] == e;
      if (!taken && (best < 0 || load(logits[e]) > load(logits[best]))) best = e;
    }
    chosen[j] = best;
  }
}

}  // namespace prun::cpu
