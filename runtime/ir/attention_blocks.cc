// Finds the layers by walking from an attention towards its inputs.
//
// Surprising fact: a layer may be several linears, because adapters (LoRA) add theirs to its outputs; the second linear
// of an adapter has the same blocks.
#include "ir/attention_blocks.h"

#include <algorithm>
#include <map>

#include "ir/ops.h"

namespace prun {
namespace {

class BlockFinder {
 public:
  explicit BlockFinder(Graph& graph) : graph_(graph) {
    for (const Node& node : graph.nodes)
      for (const ValueId output : node.outputs) maker_[output] = &node;
  }

  void run() {
    for (const Node& node : graph_.nodes)
      if (node.op == &ops::attention) follow(node.inputs[0], blocks_of(node));
  }

 private:
  std::vector<int64_t> blocks_of(const Node& attention) const {
    const int64_t heads = attention.attrs.integer("heads", 1), shared = attention.attrs.integer("kv_heads", heads);
    const int64_t size = graph_.values[attention.inputs[0]].type.shape.back() / (heads + 2 * shared);
    return {heads * size, shared * size, shared * size};
  }

  void follow(ValueId value, const std::vector<int64_t>& blocks) {
    const auto found = maker_.find(value);
    if (found == maker_.end()) return;
    const Node& node = *found->second;
    if (node.op == &ops::linear && node.attrs.integer("transpose") == 0) {
      for (size_t i = 1; i < node.inputs.size(); ++i) set(node.inputs[i], blocks);
    } else if (node.op == &ops::rotary || node.op == &ops::rotary_at) {
      follow(node.inputs[0], blocks);
    } else if (node.op->distribution == Distribution::elementwise) {
      for (const ValueId input : node.inputs) follow(input, blocks);
    }
  }

  void set(ValueId id, const std::vector<int64_t>& blocks) {
    Value& parameter = graph_.values[id];
    if (parameter.kind == ValueKind::parameter && parameter.blocks.empty()) parameter.blocks = blocks;
  }

  Graph& graph_;
  std::map<ValueId, const Node*> maker_;
};

}  // namespace

void find_attention_blocks(Graph& graph) { BlockFinder(graph).run(); }

}  // namespace prun
