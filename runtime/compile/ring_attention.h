// Lowers ring_attention and its gradient to blocks of attention, sends and receives.
//
// Keys and values take c − 1 hops to the next rank, each hidden behind the block of the hop before; in the gradient,
// what the blocks add to their gradients takes c hops behind them, in f32, and ends at home.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/op_def.h"

namespace prun {

// One op of the expansion, to be recorded in this order. Ids are the caller's.
struct RingStep {
  const OpDef* op;
  std::vector<TensorId> reads, writes;
  Attrs attrs;
  std::string stream;  // "", "ring_send" or "ring_recv"
};

// What a node reads and writes, in the op's order: qkv -> out, lse, or qkv, out, dout, lse -> dqkv.
struct RingNode {
  std::vector<TensorId> reads, writes;
  TensorType qkv;  // the rank's part
  Attrs attrs;     // tokens_axis, chunks, heads, kv_heads, causal
};

// Makes a tensor that lives within the expansion; its name is a suffix for the node's.
using MakeTemporary = std::function<TensorId(std::string_view name, TensorType type)>;

// `ranks` is the size of the axis. Sends and receives go along it; a pair needs one lane for both.
std::vector<RingStep> lower_ring_attention(const RingNode& node, int ranks, const MakeTemporary& temporary);
std::vector<RingStep> lower_ring_attention_grad(const RingNode& node, int ranks, const MakeTemporary& temporary);

}  // namespace prun
