// Where a dim that ranks or microbatches split is after a view: the views' part of distribution, shared by all axes.
#pragma once
#include <optional>

#include "compile/compile_state.h"

namespace prun {

bool is_view(const OpDef& op);

// Returns the dim of the output y that contains the parts of dim `dim` of an input of shape x; nullopt = the view
// mixes them. Both shapes are whole or both a rank's. A reshape may divide or merge the dim if its parts remain
// contiguous; with `undivided` it must keep the dim.
std::optional<int> dim_after(const Node& view, const Shape& x, int dim, const Shape& y, bool undivided);

// Returns whether the view picks rows of this dim by ids.
bool mixes_rows(const Graph& graph, const Node& view, int dim);

// Returns "reshape mixes dim 1 of [8, 4, 16]".
std::string mixing_text(const Node& view, int dim, const Shape& x);

// Requires that views keep samples apart if ranks or microbatches divide the batch. Marks the expansions that repeat a
// value once a sample.
void follow_samples(CompileState& state);

}  // namespace prun
