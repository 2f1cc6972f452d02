// Reductions and copies: the arithmetic of the collectives.
//
// Always in rank order, ((x0 + x1) + x2) + ..., so that results are the same bits on every rank, every run and every
// transport. bf16 and f16 accumulate in f32 and round once, to nearest even. avg is sum * (1/N); of integers, which
// wrap, sum / N.
#pragma once
#include <cstddef>

namespace prun::shm {

inline constexpr int kMaxMembers = 1024;  // of a group

size_t dtype_bytes(int dtype);  // 0: no such dtype

// to[0 .. m) = the reduction of from[0 .. n), `count` elements each. A `to` may be one of `from`. `stream`: write past
// the cache, for outputs that will not be read again before they would be evicted.
void reduce(int dtype, int redop, const void* const* from, int n, void* const* to, int m, size_t count, bool stream);

void copy(void* to, const void* from, size_t bytes, bool stream);

}  // namespace prun::shm
