// Ranges of the ids that a model computes, such as positions that are counted from a mask.
#pragma once
#include "ir/graph.h"

namespace prun {

// Throws Error at the site of a lookup whose computed ids may be outside its table. Ids of data are checked when data
// is read (data/check_range.cc), within the limits that id_limits returns.
void check_computed_ids(const Graph& graph);

}  // namespace prun
