// Matrix products on copies of the operands that fit the caches (Goto and van de Geijn, "Anatomy of high-performance
// matrix multiplication", 2008), with the bias and the activation applied to each tile of C while it is hot.
//
// bf16 operands become f32 as they are copied, or pairs where the CPU multiplies those faster.
#pragma once
#include "kernels/cpu/gemm/gemm.h"

namespace prun::cpu {

int64_t packed_gemm_scratch_bytes(const GemmShape& shape);
// `add`: to an f32 C, without a bias. `sums`, if any, become the sums of B's columns, which is not transposed then:
// they ride in B's copy.
void packed_gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch,
                 bool add = false, float* sums = nullptr);

}  // namespace prun::cpu
