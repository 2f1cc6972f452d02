// The epilogue of a GEMM's tile: its activation, and its conversion if C is bf16.
#pragma once
#include <cstdint>

#include "device/bf16.h"
#include "kernels/cpu/gemm/gemm.h"

namespace prun::cpu {

// Writes act(`from`), `rows` x `columns` with rows `from_row` apart, to c. May be in place.
void finish_tile(const float* from, int64_t from_row, float* c, int64_t c_row, int64_t rows, int64_t columns,
                 Activation activation);
void finish_tile(const float* from, int64_t from_row, bf16* c, int64_t c_row, int64_t rows, int64_t columns,
                 Activation activation);

}  // namespace prun::cpu
