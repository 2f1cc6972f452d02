// Reductions and copies: the arithmetic of collectives, one set of kernels for the core and for plugins.
//
// Inputs are always combined in order, ((x0 + x1) + x2) + ..., so that results are bitwise identical on every rank, run
// and transport. bf16 and f16 accumulate in f32 and are rounded once, which is why a call takes all inputs. Integer
// sums and products wrap. Part of the library prun::sdk.
#pragma once
#include <prun/transport.h>

#include <cstddef>

namespace prun::sdk {

// Returns the bytes of a prun_dtype; 0 = no such type.
constexpr size_t dtype_bytes(int dtype) {
  constexpr size_t kBytes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  return dtype >= PRUN_F64 && dtype <= PRUN_U8 ? kBytes[dtype] : 0;
}
constexpr bool is_float(int dtype) { return dtype <= PRUN_F16; }

struct Reduction {
  int dtype, redop;
  // The divisor of PRUN_AVG: floats are multiplied by 1/divisor; an integer's 64-bit sum is divided, towards zero
  int divisor;
};

// Writes the reduction of from[0 .. n), `count` elements each, to each of to[0 .. m). A `to` may equal one of `from`.
// `stream`: uses non-temporal stores, for outputs that would be evicted before their next read. Any thread.
void reduce(const Reduction& how, const void* const* from, int n, void* const* to, int m, size_t count,
            bool stream = false);

void copy(void* to, const void* from, size_t bytes, bool stream);

}  // namespace prun::sdk
