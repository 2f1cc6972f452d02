#include "ir/wire_bytes.h"

#include "ir/ops.h"

namespace prun {

double wire_bytes(const Program& program, const Op& op) {
  if (op.reads.empty()) return 0;
  double n = program.mesh.size(op.axis);
  double in = static_cast<double>(program.tensors[op.reads[0]].bytes());
  if (op.is(ops::all_reduce)) return 2 * (n - 1) / n * in;
  if (op.is(ops::all_gather) || op.is(ops::all_gather_v)) return (n - 1) * in;
  if (op.sends()) return in;
  if (op.receives()) return 0;
  if (op.is(ops::reduce_scatter) || op.is(ops::all_to_all)) return (n - 1) / n * in;
  return n > 1 ? in : 0;
}

}  // namespace prun
