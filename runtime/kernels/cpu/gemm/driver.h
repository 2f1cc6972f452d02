// The GEMM driver: C = act(op(A)·op(B) + bias) in blocks that fit the caches (Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", 2008), for any backend (backend.h).
#pragma once
#include "kernels/cpu/gemm/backend.h"

namespace prun::cpu {

int64_t driver_scratch_bytes(const Backend& backend, const GemmShape& shape);

// Runs a GEMM. `add` accumulates into an f32 C, without a bias. `sums`, if not null, receives the sums of B's columns,
// which are computed while B is packed; B must not be transposed.
void run_driver(const Backend& backend, const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
                void* scratch, bool add = false, float* sums = nullptr);

}  // namespace prun::cpu
