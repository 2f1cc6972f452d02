// The blocks of fused q, k and v: a layer whose outputs an attention reads computes three results side by side.
#pragma once
#include "ir/graph.h"

namespace prun {

// Sets the blocks of parameters of linears without blocks, from the head counts of the attention that reads the
// outputs. Reads through rotary embeddings and elementwise ops; blocks that the plan lists are unchanged.
void find_attention_blocks(Graph& graph);

}  // namespace prun
