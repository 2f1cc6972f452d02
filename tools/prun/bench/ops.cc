// A message is represented by a call without reduction.
#include "bench/ops.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "comm/collectives/call.h"

namespace prun {

const std::vector<BenchOp>& bench_ops() {
  using What = BenchOp::What;
  const auto collective = [](CollKind kind, bool in_place, bool sized = true) {
    return BenchOp{traits(kind).name.data(), What::collective, kind, sized, in_place, true, 1};
  };
  static const std::vector<BenchOp> ops = {
      collective(CollKind::all_reduce, true),
      collective(CollKind::reduce_scatter, true),
      collective(CollKind::all_gather, true),
      collective(CollKind::broadcast, true),
      collective(CollKind::all_to_all, false),
      collective(CollKind::reduce, true),
      collective(CollKind::gather, false),
      collective(CollKind::scatter, false),
      collective(CollKind::barrier, false, false),
      // name        what             kind            sized  in place  all  ranks
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
