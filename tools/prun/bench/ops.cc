// A message counts as a call that reduces nothing.
#include "bench/ops.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "comm/collectives/call.h"

namespace prun {

const std::vector<BenchOp>& bench_ops() {
  using What = BenchOp::What;
  static const std::vector<BenchOp> ops = {
      // name             what              kind                      sized  in place  all    ranks
      {"all_reduce", What::collective, CollKind::all_reduce, true, true, true, 1},
      {"reduce_scatter", What::collective, CollKind::reduce_scatter, true, true, true, 1},
      {"all_gather", What::collective, CollKind::all_gather, true, true, true, 1},
      {"broadcast", What::collective, CollKind::broadcast, true, true, true, 1},
      {"all_to_all", What::collective, CollKind::all_to_all, true, false, true, 1},
      {"reduce", What::collective, CollKind::reduce, true, true, true, 1},
      {"gather", What::collective, CollKind::gather, true, false, true, 1},
      {"scatter", What::collective, CollKind::scatter, true, false, true, 1},
      {"barrier", What::collective, CollKind::barrier, false, false, true, 1},
      {"send_recv", What::send_recv, CollKind::barrier, true, false, true, 1},
      {"ping_pong", What::ping_pong, CollKind::barrier, true, false, false, 2},
      {"idle", What::idle, CollKind::barrier, false, false, false, 2},
  };
  return ops;
}

const BenchOp& find_bench_op(const std::string& name) {
  std::vector<std::string> names;
  for (const BenchOp& op : bench_ops()) {
    if (name == op.name) return op;
    names.emplace_back(op.name);
  }
  std::string near = did_you_mean(name, names);
  throw usage_error(fmt::format("there is no '{}' to measure{}", name, near));
}

double bus_factor(const BenchOp& op, int ranks) {
  if (op.what != BenchOp::What::collective || op.kind == CollKind::broadcast || op.kind == CollKind::reduce) return 1;
  const double part = static_cast<double>(ranks - 1) / ranks;
  return op.kind == CollKind::all_reduce ? 2 * part : part;
}

CollCall call_of(const BenchOp& op, int64_t bytes, Dtype dtype, RedOp redop, int root, int ranks) {
  CollCall call;
  call.kind = op.kind;
  call.dtype = dtype;
  call.redop = redop;
  if (traits(op.kind).rooted) call.root = root;
  if (!op.sized) return call;
  const bool whole = op.what != BenchOp::What::collective || op.kind == CollKind::all_reduce ||
                     op.kind == CollKind::broadcast || op.kind == CollKind::reduce;
  call.count = std::max<int64_t>(1, bytes / dtype_bytes(dtype) / (whole ? 1 : ranks));
  return call;
}

}  // namespace prun
