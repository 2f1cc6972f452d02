// Inputs of norm2 for a unit's sum of squares, so that every element counts once over all ranks.
#pragma once
#include <string>
#include <vector>

#include "compile/compile_state.h"

namespace prun {

// Tensors and their weights: 1 / the number of ranks with the same elements. `starts` is not empty if the pieces of a
// shard have different weights; that only tensor then has several weights.
struct Squares {
  std::vector<TensorId> tensors;
  std::vector<double> weights;
  std::vector<int64_t> starts;
  Attrs attrs(const std::string& shard_axis) const;  // attributes of the norm2
};

// Returns the mesh axes along which ranks hold different parameters.
std::vector<std::string> split_axes(const CompileState& state);
// Returns the squares of `of`, this rank's parameters or gradients of the unit; the caller all-reduces over `split`.
Squares squares_of(CompileState& state, UnitId unit, TensorId of, const std::vector<std::string>& split);

}  // namespace prun
