// An op of the model in the backward phase computes activations for the second time: it does not count.
#include "ir/model_flops.h"

#include <vector>

namespace prun {
namespace {

std::vector<TensorType> types_of(const Program& program, const std::vector<TensorId>& tensors) {
  std::vector<TensorType> types;
  for (int t : tensors) types.push_back(program.tensors[t].type());
  return types;
}

}  // namespace

double model_flops(const Program& program) {
  double flops = 0;
  for (const Stream& stream : program.step().streams) {
    for (const Op& op : stream.ops) {
      if (op.def->cost == nullptr || (op.phase == Phase::backward && op.def->role != OpRole::derivative)) continue;
      flops += op.def->cost(types_of(program, op.reads), types_of(program, op.writes), op.attrs).model;
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
