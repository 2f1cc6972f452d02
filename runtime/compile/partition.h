// Stages of a pipeline are counted in layers.
#pragma once
#include <string>
#include <vector>

#include "ir/plan.h"

namespace prun {

// Returns the number of layers that a pipeline's stages share: calls of unit classes with several units. A model
// without such classes counts all its calls.
int layers_of(const Graph& graph);
// Returns which calls are layers.
std::vector<bool> find_layers(const Graph& graph);
// Returns the stage of layer `number`: stages have equal numbers of layers, the first ones one more if need be.
int equal_share(int number, int layers, int stages);
// Returns whether the stage calls a unit of the class.
bool has_class(const Graph& graph, int stage, const std::string& unit_class);
// Sets the stage of each call. Throws plan_error if the pipeline's stages do not fit the model.
void assign_stages(const Plan& plan, Graph& graph);

}  // namespace prun
