// Elements of either float type in vector code.
#pragma once
#include "base/vector_clones.h"
#include "device/bf16.h"

namespace prun::cpu {

PRUN_INLINE float load(float x) { return x; }
PRUN_INLINE float load(bf16 x) { return to_float(x); }
PRUN_INLINE void store(float& to, float x) { to = x; }
PRUN_INLINE void store(bf16& to, float x) { to = to_bf16(x); }

}  // namespace prun::cpu
