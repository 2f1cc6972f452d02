// Expected results of collectives, computed element by element without code of runtime/comm.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/comm.h"

namespace prun::testing {

using Bytes = std::vector<char>;

// exact: small whole numbers, whose sums and products are exact in every dtype and any order. real: numbers whose sums
// depend on the order. edge: integers near the ends of their range. nans: like exact, with a NaN at every 15th element;
// each of five ranks starts at another element. Integers are like exact.
enum class Pattern { exact, real, edge, nans };
// Returns `count` elements of a rank's input from element `begin`.
Bytes make_input(Dtype dtype, Pattern pattern, int rank, int64_t count, uint64_t seed, int64_t begin = 0);

// Returns ((x0 op x1) op x2) ... in rank order; bf16 and f16 accumulate in f32; avg multiplies by 1/n, or divides
// integers.
Bytes reduce_in_rank_order(Dtype dtype, RedOp op, const std::vector<Bytes>& inputs);

// Return the elements that `call` reads and writes on a rank; -1 if that rank passes no buffer.
int64_t send_count(const CollCall& call, int rank, int size);
int64_t recv_count(const CollCall& call, int rank, int size);

// Returns the result of `call` on a rank that receives one. It requests only the parts of inputs that the result
// depends on, because every rank computes them, which takes most of the suite's time.
using Inputs = std::function<Bytes(int rank, int64_t begin, int64_t count)>;
Bytes expected(const CollCall& call, int rank, int size, const Inputs& inputs);

// Returns "" if equal, else the first difference. `tolerance` is relative; 0 = bitwise.
std::string compare(Dtype dtype, const Bytes& want, const char* got, double tolerance);

}  // namespace prun::testing
