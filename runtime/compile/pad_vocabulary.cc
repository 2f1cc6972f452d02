// Pads the vocabulary: the columns of logits, the rows or columns of the weight that computes them, and its bias become
// a multiple that the device requests. Rows of 50,257 bf16 columns begin at odd multiples of 2 bytes, which rules out
// TMA for the head's GEMMs on a GPU.
//
// The added columns are zeros and remain zeros: losses ignore columns at or above their attribute `vocab` and write
// zero gradients there, so that the weight's gradients are zero there, too. The pass runs first, so that later copies
// of the head (twins of a tied weight, the model of one token) are padded alike; each rank's part of a split vocabulary
// is padded separately.
#include <algorithm>
#include <vector>

#include "compile/compile_state.h"
#include "compile/distributor.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Returns whether the op is a loss of these logits, which ignores padded columns.
bool takes_padded_logits(const Node& node, ValueId logits) {
  return node.op == &ops::cross_entropy && node.inputs[0] == logits;
}

// Returns whether the op maps 0 to 0 with a finite derivative there.
bool keeps_zeros(const Node& node) {
  return node.op == &ops::scale || node.op == &ops::tanh || node.op == &ops::relu || node.op == &ops::gelu;
}

int output_dim(const Node& linear) { return linear.attrs.integer("transpose") != 0 ? 0 : 1; }

class VocabularyPadding {
 public:
  explicit VocabularyPadding(CompileState& state)
      : plan_(state.plan), graph_(state.graph), multiple_(state.options.vocabulary_multiple) {}

  void run() {
    for (const Node& node : graph_.nodes)
      if (is_head(node)) pad(node);
  }

 private:
  // Returns whether the op is a GEMM whose output is used as logits only.
  bool is_head(const Node& node) const {
    if (node.op != &ops::linear || !node.attrs.text("act").empty()) return false;
    const ValueId weight = node.inputs[1];
    return is_plain_parameter(weight) && graph_.values[weight].type.shape.size() == 2 && are_logits(node.outputs[0]) &&
           ranks_that_split(graph_.values[weight], output_dim(node)) > 0;
  }

  // Returns whether only losses read the value, directly or through ops that keep zeros.
  bool are_logits(ValueId value) const {
    bool read = false;
    for (const Node& reader : graph_.nodes) {
      if (std::count(reader.inputs.begin(), reader.inputs.end(), value) == 0) continue;
      if (!takes_padded_logits(reader, value) && !(keeps_zeros(reader) && are_logits(reader.outputs[0]))) return false;
      read = true;
    }
    return read;
  }

  bool is_plain_parameter(ValueId id) const {
    const Value& value = graph_.values[id];
    return value.kind == ValueKind::parameter && value.blocks.empty() && value.whole.empty();
  }

  // Returns the number of ranks over which strategies split the weight along `dim`; 0 = split along the reduction dim,
  // because only one dim of a parameter can be split or padded.
  int ranks_that_split(const Value& weight, int dim) const {
    const std::string& unit_class = graph_.units[weight.unit].unit_class;
    int ranks = 1;
    for (const Strategy& strategy : plan_.strategies)
      for (const StrategyUnit& unit : strategy.units)
        for (const LayerPlacement& placement : unit.layers) {
          const int size = plan_.mesh.size(placement.axis);
          if (size == 1 || unit.unit_class != unit_class || placement.layer != layer_of(graph_, weight)) continue;
          ranks = placement.dim == dim ? ranks * size : 0;
        }
    return ranks;
  }

  // Returns whether every other reader of the weight is an embedding with this table, or another head with the same
  // output dim.
  bool can_pad(ValueId weight, int dim) const {
    for (const Node& node : graph_.nodes) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] != weight) continue;
        const bool table = node.op == &ops::embedding && i == 1 && dim == 0;
        if (!table && !(i == 1 && is_head(node) && output_dim(node) == dim)) return false;
      }
    }
    return true;
  }
  // Returns whether only the GEMMs of this weight read the bias.
  bool can_pad_bias(ValueId bias, ValueId weight) const {
    return is_plain_parameter(bias) && std::all_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
             const auto at = std::find(node.inputs.begin(), node.inputs.end(), bias);
             return at == node.inputs.end() || (at - node.inputs.begin() == 2 && node.inputs[1] == weight);
           });
  }

  void pad(const Node& head) {
    const ValueId weight = head.inputs[1];
    const int dim = output_dim(head);
    const int64_t vocab = graph_.values[weight].type.shape[dim];
    if (vocab % (multiple_ * ranks_that_split(graph_.values[weight], dim)) == 0 || !can_pad(weight, dim)) return;
    std::vector<Node*> heads;
    for (Node& node : graph_.nodes)
      if (node.op == &ops::linear && node.inputs[1] == weight) heads.push_back(&node);
    for (const Node* each : heads)
      if (each->inputs.size() > 2 && !can_pad_bias(each->inputs[2], weight)) return;
    pad_parameter(weight, dim);
    for (Node* each : heads) {
      each->attrs.set("columns", static_cast<double>(vocab));
      if (each->inputs.size() > 2 && graph_.values[each->inputs[2]].whole.empty()) pad_parameter(each->inputs[2], 0);
      pad_logits(each->outputs[0], vocab);
    }
    for (Node& node : graph_.nodes)
      if (node.op == &ops::embedding && node.inputs[1] == weight) node.attrs.set("valid", vocab);
  }

  void pad_logits(ValueId logits, int64_t vocab) {
    graph_.values[logits].type.shape.back() = run_of(vocab, 1, multiple_);
    for (Node& reader : graph_.nodes) {
      if (takes_padded_logits(reader, logits)) reader.attrs.set("vocab", vocab);
      if (keeps_zeros(reader) && reader.inputs[0] == logits) pad_logits(reader.outputs[0], vocab);
    }
  }

  void pad_parameter(ValueId parameter, int dim) {
    Value& value = graph_.values[parameter];
    value.whole = value.type.shape;
    value.split_dim = dim;
    value.grain = multiple_;
    value.type.shape[dim] = run_of(value.whole[dim], 1, multiple_);
  }

  const Plan& plan_;
  Graph& graph_;
  const int64_t multiple_;
};

}  // namespace

void pad_vocabulary(CompileState& state) {
  if (state.options.vocabulary_multiple > 1) VocabularyPadding(state).run();
}

}  // namespace prun
