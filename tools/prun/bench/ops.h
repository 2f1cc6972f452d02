// The measurable collectives and messages, and the call for a size in bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/settings.h"
#include "comm/comm.h"

namespace prun {

struct BenchOp {
  enum class What { collective, send_recv, ping_pong, idle };
  const char* name;
  What what;
  CollKind kind;  // kind of a collective
  bool sized;     // measured for each size
  bool in_place;  // supports in-place calls
  bool in_all;    // part of `all`
  int least_ranks;
};
const std::vector<BenchOp>& bench_ops();
const BenchOp& find_bench_op(const std::string& name);  // throws usage_error

// Returns bus bandwidth over algorithm bandwidth, as defined by nccl-tests.
double bus_factor(const BenchOp& op, int ranks);

// Returns the call that moves about `bytes` in the larger of a rank's two buffers, at least one element per rank.
CollCall call_of(const BenchOp& op, int64_t bytes, Dtype dtype, RedOp redop, int root, int ranks);

}  // namespace prun
