// Products of bf16 matrices on the tile registers of AMX: C in squares of 32 x 32 sums that stay in four of the eight
// tiles while K runs through the others.
#pragma once
#include "device/cpu/gemm.h"

namespace prun::cpu {

// Asks the system for the tile registers of this process, and of what it forks.
bool tiles_are_allowed();
// Whether products of bf16 are made on tiles (kernel_choice.h).
bool has_amx();
// This thread's registers as eight tiles of 16 rows of 64 bytes, and given back.
void open_tiles();
void close_tiles();
// bf16 operands, and as many rows as a square of sums has, or a B that is packed.
bool takes_amx(const GemmShape& shape);
int64_t amx_gemm_scratch_bytes(const GemmShape& shape);
// With shape.packed_b B is what amx_gemm_pack_b made.
void amx_gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch);

// B in tiles, part of K by part, as products of any number of rows and threads read it. A line more than the tiles
// take, so that no plain copy of B is as long.
int64_t amx_gemm_b_bytes(const GemmShape& shape);
void amx_gemm_pack_b(const GemmShape& shape, const void* b, void* to);

}  // namespace prun::cpu
