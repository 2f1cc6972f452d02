// What a collective must give, computed the slow way, element by element, without anything of runtime/comm.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/comm.h"

namespace prun::testing {

using Bytes = std::vector<char>;

// exact: small whole numbers, whose sums and products are exact in every dtype and any order. real: numbers whose sums
// depend on the order. edge: integers near the ends of their range. nans: like exact, with a NaN at every 15th element;
// each of five ranks starts at another element. Integers are like exact.
enum class Pattern { exact, real, edge, nans };
Bytes make_input(Dtype dtype, Pattern pattern, int rank, int64_t count, uint64_t seed);

// ((x0 op x1) op x2) ... in rank order; bf16 and f16 in f32; avg times 1/n, integers divided.
Bytes reduce_in_rank_order(Dtype dtype, RedOp op, const std::vector<Bytes>& inputs);

// What `call` needs and gives on a rank, in elements; -1 where that rank passes no buffer.
int64_t send_count(const CollCall& call, int rank, int size);
int64_t recv_count(const CollCall& call, int rank, int size);
Bytes expected(const CollCall& call, int rank, const std::vector<Bytes>& inputs);

// "" when equal; else where they differ first. `tolerance` is relative, 0 for bits.
std::string compare(Dtype dtype, const Bytes& want, const char* got, double tolerance);

}  // namespace prun::testing
