// Products of bf16 matrices on the tile registers of AMX: C in squares of 32 x 32 sums that stay in four of the eight
// tiles while K runs through the others.
#pragma once
#include "kernels/cpu/gemm/gemm.h"

namespace prun::cpu {

// Asks the system for the tile registers of this process, and of what it forks.
bool tiles_are_allowed();
// Whether products of bf16 are made on tiles (kernel_choice.h).
bool has_amx();
// This thread's registers as eight tiles of 16 rows of 64 bytes, and given back.
void open_tiles();
void close_tiles();
// bf16 operands, and as many rows as a square of sums has.
bool takes_amx(const GemmShape& shape);
int64_t amx_gemm_scratch_bytes(const GemmShape& shape);
void amx_gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch);

}  // namespace prun::cpu
