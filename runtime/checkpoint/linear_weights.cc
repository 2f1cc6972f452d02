#include "checkpoint/linear_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ir/graph.h"
#include "ir/ops.h"
#include "ir/program.h"

namespace prun::checkpoint {
namespace {

bool reads_rows_of_inputs(const OpDef& op, const Attrs& attrs) {
  return (&op == &ops::linear || &op == &ops::linear_gelu) && attrs.integer("transpose") == 0;
}

}  // namespace

std::set<std::string> linear_weights(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes) {
    if (!reads_rows_of_inputs(*node.op, node.attrs)) continue;
    const Value& weight = graph.values[node.inputs[1]];
    if (weight.kind == ValueKind::parameter) names.insert(weight.name);
  }
  return names;
}

// A rank reads a weight under its name, gathered or not, or a copy in bf16 whose name begins with it.
std::set<std::string> linear_weights(const Program& program) {
  std::set<std::string> read, names;
  for (const Body& body : program.bodies)
    for (const Stream& stream : body.streams)
      for (const Op& op : stream.ops)
        if (reads_rows_of_inputs(*op.def, op.attrs)) read.insert(program.tensors[op.reads[1]].name);
  for (const StateTensor& state : program.state)
    if (std::ranges::any_of(read, [&](const std::string& name) {
          return name == state.name || name.starts_with(state.name + ".") || name.starts_with(state.name + "#");
        }))
      names.insert(state.name);
  return names;
}

void take_linear_weights(Weights& weights, const std::set<std::string>& linear) {
  for (auto& [name, weight] : weights.tensors) {
    if (!weight.of_torch || weight.shape.size() != 2 || !linear.contains(name)) continue;
    weight.of_torch = false;
    std::swap(weight.shape[0], weight.shape[1]);
    for (WeightPiece& piece : weight.pieces) {
      std::swap(piece.shape[0], piece.shape[1]);
      std::swap(piece.offset[0], piece.offset[1]);
      piece.order = {1, 0};
    }
  }
}

void require_known_layout(const Weights& weights) {
  for (const auto& [name, weight] : weights.tensors)
    if (weight.of_torch && weight.shape.size() == 2)
      throw Error(
          Exit::checkpoint_invalid,
          fmt::format("{} does not record whether {} belongs to a linear layer, which PyTorch stores transposed; "
                      "a plan knows: init = prun.init.from {{ path = \"{}\" }}",
                      weights.folder, name, weights.folder));
}

}  // namespace prun::checkpoint
