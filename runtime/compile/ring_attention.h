// Lowers ring_attention and its gradient to attention blocks, sends and receives.
//
//   hop       0             1             ...  c - 1
//   compute   block         block              block
//   K, V      send ->       send ->                           c - 1 hops, each overlaps with a block
//   dK, dV          send ->       send ->            send ->  c hops in f32, each after a block, back to the owner
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/op_def.h"

namespace prun {

// One op of the expansion, in the order of recording. Tensor ids are the caller's.
struct RingStep {
  const OpDef* op;
  std::vector<TensorId> reads, writes;
  Attrs attrs;
  std::string stream;  // "", "ring_send" or "ring_recv"
};

// Inputs and outputs of a node in the op's order: qkv -> out, lse, or qkv, out, dout, lse -> dqkv.
struct RingNode {
  std::vector<TensorId> reads, writes;
  TensorType qkv;  // the rank's part
  Attrs attrs;     // tokens_axis, chunks, heads, kv_heads, causal
};

// Adds a tensor that lives within the expansion; `name` is a suffix of the node's name.
using MakeTemporary = std::function<TensorId(std::string_view name, TensorType type)>;

// Return the ops in order. `ranks` is the size of the axis that messages travel along; both directions need one lane.
std::vector<RingStep> lower_ring_attention(const RingNode& node, int ranks, const MakeTemporary& temporary);
std::vector<RingStep> lower_ring_attention_grad(const RingNode& node, int ranks, const MakeTemporary& temporary);

}  // namespace prun
