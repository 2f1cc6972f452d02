#include "compile/norms.h"

#include "compile/ir_build.h"
#include "ir/split_axes.h"

namespace prun {

Attrs Squares::attrs(const std::string& shard_axis) const {
  Attrs attrs;
  if (starts.empty()) {
    attrs.set("weights", weights);
    return attrs;
  }
  attrs.set("piece_starts", starts);
  attrs.set("piece_weights", weights);
  attrs.set("axis", shard_axis);
  return attrs;
}

std::vector<std::string> split_axes(const CompileState& state) {
  std::vector<std::string> axes;
  for (const Axis& axis : state.plan.mesh.axes())
    for (const Value& value : state.graph.values)
      if (axis.size > 1 && SplitAxes(value.split_axis).has(axis.name)) {
        axes.push_back(axis.name);
        break;
      }
  return axes;
}

Squares squares_of(CompileState& state, UnitId unit, TensorId of, const std::vector<std::string>& split) {
  const UnitStorage& storage = state.storage[unit];
  const std::vector<ValueId>& parameters = state.graph.units[unit].parameters;
  Squares squares;
  std::vector<std::pair<int64_t, double>> pieces;  // start, weight; in the order of the layout
  for (size_t i = parameters.size(); i-- > 0;) {
    double weight = 1;
    for (const std::string& axis : split)
      if (!storage.is_sharded_over(axis) && !SplitAxes(state.graph.values[parameters[i]].split_axis).has(axis))
        weight /= state.plan.mesh.size(axis);
    if (pieces.empty() || pieces.back().second != weight) pieces.emplace_back(state.layouts[unit].start[i], weight);
  }
  if (pieces.size() == 1) return {{of}, {pieces[0].second}, {}};
  if (!state.shard_axis(unit).empty()) {
    squares.tensors = {of};
    for (auto [start, weight] : pieces) squares.starts.push_back(start), squares.weights.push_back(weight);
    return squares;
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    int64_t end = i + 1 < pieces.size() ? pieces[i + 1].first : storage.shard;
    squares.tensors.push_back(
        add_view(state.program, state.unit_name(unit) + ".squares", of, pieces[i].first, {end - pieces[i].first}));
    squares.weights.push_back(pieces[i].second);
  }
  return squares;
}

}  // namespace prun
