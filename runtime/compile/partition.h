// Stages of a pipeline are counted in layers.
#pragma once
#include "ir/graph.h"

namespace prun {

// Returns the number of layers that a pipeline's stages share: calls of unit classes with several units. A model
// without such classes counts all its calls.
int layers_of(const Graph& graph);

}  // namespace prun
