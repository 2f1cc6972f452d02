// Finds the weights of linear layers. PyTorch stores them as [out, in] and prun as [in, out]. The shape of a square one
// is the same in both layouts, so the graph of the plan decides.
#pragma once
#include <set>
#include <string>

#include "checkpoint/weights.h"

namespace prun {
struct Graph;
struct Program;
}  // namespace prun

namespace prun::checkpoint {

// Return the names of the matrices [in, out] that linear ops read. Weights that are read transposed, such as a tied
// embedding, are omitted, because they have the same layout in PyTorch.
std::set<std::string> linear_weights(const Graph& graph);
std::set<std::string> linear_weights(const Program& program);

// Gives the weights that files store in PyTorch's layout (Weight::of_torch) prun's.
void take_linear_weights(Weights& weights, const std::set<std::string>& linear);

// Throws checkpoint_invalid for matrices in PyTorch's layout, whose layer is known only with a plan.
void require_known_layout(const Weights& weights);

}  // namespace prun::checkpoint
