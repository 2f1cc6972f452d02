#include "ir/op_cost.h"

#include <vector>

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

}  // namespace prun
