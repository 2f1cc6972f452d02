// Reductions and copies: the arithmetic of collectives, one set of kernels for the core and for plugins.
//
// Always in the order of the inputs, ((x0 + x1) + x2) + ..., so that results are the same bits on every rank, every run
// and every transport. bf16 and f16 are computed in f32 and rounded once; that is why all inputs are taken at a time.
// Sums and products of integers wrap. The library prun::sdk has it.
#pragma once
#include <prun/transport.h>

#include <cstddef>

namespace prun::sdk {

// Bytes of a prun_dtype, 0: there is none.
constexpr size_t dtype_bytes(int dtype) {
  constexpr size_t kBytes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  return dtype >= PRUN_F64 && dtype <= PRUN_U8 ? kBytes[dtype] : 0;
}
constexpr bool is_float(int dtype) { return dtype <= PRUN_F16; }

struct Reduction {
  int dtype, redop;
  int divisor;  // of PRUN_AVG: floats times 1/divisor, for integers the 64-bit sum divided towards zero
};

// to[0 .. m) = the reduction of from[0 .. n), `count` elements each. A `to` may be one of `from`. `stream`: write past
// the cache, for outputs that will not be read again before they would be evicted. Any thread.
void reduce(const Reduction& how, const void* const* from, int n, void* const* to, int m, size_t count,
            bool stream = false);

void copy(void* to, const void* from, size_t bytes, bool stream);

}  // namespace prun::sdk
