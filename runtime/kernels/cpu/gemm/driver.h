// The GEMM driver: C = act(op(A)·op(B) + bias) in blocks that fit the caches (Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", 2008), for any backend (backend.h).
#pragma once
#include "kernels/cpu/gemm/backend.h"

namespace prun::cpu {

int64_t driver_scratch_bytes(const Backend& backend, const GemmShape& shape);

// `add`: to an f32 C, without a bias. `sums`, if any, become the sums of B's columns, which must not be transposed;
// they are computed while B is packed.
void run_driver(const Backend& backend, const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
                void* scratch, bool add = false, float* sums = nullptr);

}  // namespace prun::cpu
