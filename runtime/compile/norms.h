// What norm2 takes to give a unit's part of a sum of squares in which every element counts once.
#pragma once
#include <string>
#include <vector>

#include "compile/compile_state.h"

namespace prun {

// Tensors, and what the squares in each count: 1 over the number of ranks that have the same elements. `starts` is not
// empty for a shard whose pieces count differently: its only tensor then has several weights.
struct Squares {
  std::vector<TensorId> tensors;
  std::vector<double> weights;
  std::vector<int64_t> starts;
  Attrs attrs(const std::string& shard_axis) const;  // of the norm2
};

// Mesh axes over which ranks hold different parameters.
std::vector<std::string> split_axes(const CompileState& state);
// Of the unit's parameters or gradients, `of`, as this rank has them; ranks along the axes of `split` add theirs up.
Squares squares_of(CompileState& state, UnitId unit, TensorId of, const std::vector<std::string>& split);

}  // namespace prun
