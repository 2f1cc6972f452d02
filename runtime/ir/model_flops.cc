// An op of the model in the backward phase computes activations for the second time: it does not count.
#include "ir/model_flops.h"

#include <vector>

#include "ir/op_cost.h"

namespace prun {
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
