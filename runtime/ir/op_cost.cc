#include "ir/op_cost.h"

#include <vector>

#include "ir/ops.h"

namespace prun {
namespace {

std::vector<TensorType> types_of(const Program& program, const std::vector<TensorId>& tensors) {
  std::vector<TensorType> types;
  types.reserve(tensors.size());
  for (const TensorId id : tensors) types.push_back(program.tensors[id].type());
  return types;
}

}  // namespace

Cost op_cost(const Program& program, const Op& op) {
  return op_cost(*op.def, types_of(program, op.reads), types_of(program, op.writes), op.attrs);
}

// Depends on the program alone, not on the algorithm.
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

// A model op in the backward phase recomputes an activation and does not count.
double model_flops(const Program& program) {
  double flops = 0;
  for (const Stream& stream : program.step().streams) {
    for (const Op& op : stream.ops) {
      if (op.def->cost == nullptr || (op.phase == Phase::backward && op.def->role != OpRole::derivative)) continue;
      flops += op_cost(program, op).model;
    }
  }
  return flops;
}

double model_flops(const Job& job) {
  std::vector<double> of_class;
  for (const Program& program : job.classes) of_class.push_back(model_flops(program));
  double flops = 0;
  for (int c : job.class_of_rank) flops += of_class[c];
  return flops;
}

}  // namespace prun
