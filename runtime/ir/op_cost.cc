#include "ir/op_cost.h"

#include <vector>

#include "ir/ops.h"
#include "ir/per_kind.h"

namespace prun {
namespace {

std::vector<TensorType> types_of(const Program& program, const std::vector<TensorId>& tensors) {
  std::vector<TensorType> types;
  types.reserve(tensors.size());
  for (const TensorId id : tensors) types.push_back(program.tensors[id].type());
  return types;
}

// Calls `use` with each op of a step that the model's formulas contain. A model op in the backward phase recomputes an
// activation, so it does not count.
template <class Use>
void each_model_op(const Program& program, const Use& use) {
  for (const Stream& stream : program.step().streams)
    for (const Op& op : stream.ops)
      if (op.def->cost != nullptr && (op.phase != Phase::backward || op.def->role == OpRole::derivative)) use(op);
}

template <class Flops>
double of_all_ranks(const Job& job, const Flops& flops) {
  std::vector<double> of_class;
  for (const Program& program : job.classes) of_class.push_back(flops(program));
  double sum = 0;
  for (const int c : job.class_of_rank) sum += of_class[c];
  return sum;
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
  if (op.is(ops::reduce_scatter) || op.is(ops::all_to_all) || op.def->coll == CollKind::all_to_all_v)
    return (n - 1) / n * in * op.attrs.number("routed", 1);
  return n > 1 ? in : 0;
}

double model_flops(const Program& program) {
  double flops = 0;
  PerKind<double> known(program);
  each_model_op(program, [&](const Op& op) { flops += known.of(op, [&] { return op_cost(program, op).model; }); });
  return flops;
}

double replicated_flops(const Program& program) {
  double flops = 0;
  each_model_op(program, [&](const Op& op) {
    if (const int64_t replicas = op.attrs.integer("replicas", 1); replicas > 1)
      flops += op_cost(program, op).model * static_cast<double>(replicas - 1);
  });
  return flops;
}

double model_flops(const Job& job) {
  return of_all_ranks(job, [](const Program& program) { return model_flops(program); });
}

double replicated_flops(const Job& job) {
  return of_all_ranks(job, [](const Program& program) { return replicated_flops(program); });
}

}  // namespace prun
