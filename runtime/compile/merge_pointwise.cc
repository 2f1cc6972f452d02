// Merges chains of elementwise ops into one pointwise op, so that values between them never reach memory. A chain needs
// a pointwise op: add, mul, scale, relu and tanh remain as they are next to each other.
//
// Runs before autodiff, so that backward retains only the inputs of a chain, and again over backward. Surprising fact:
// a derivative then computes the chain again from its inputs, which is cheaper than reading what it would have stored.
#include <algorithm>

#include "compile/compile_state.h"
#include "ir/ops.h"
#include "ir/pointwise.h"

namespace prun {
namespace {

// Instructions of a merged program. A derivative adds at most nine for each, so that it has at most 256, the most of a
// program (prun/sdk/pointwise.h).
constexpr size_t kMostForward = 24, kMostBackward = 64;

struct Elementwise {
  sdk::PointwiseProgram program;
  std::vector<int64_t> masks;  // of each input: the output dims that it has
};

class Merger {
 public:
  Merger(Graph& graph, std::vector<Node>& nodes, size_t most) : graph_(graph), nodes_(nodes), most_(most) {
    maker_.assign(graph.values.size(), -1);
    readers_.assign(graph.values.size(), 0);
    gone_.assign(nodes.size(), false);
  }

  // Counts a reader outside of the nodes.
  void read(ValueId value) {
    if (!value.none()) ++readers_[value];
  }

  void run() {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for (const ValueId output : nodes_[n].outputs) maker_[output] = static_cast<int>(n);
      for (const ValueId input : nodes_[n].inputs) ++readers_[input];
    }
    for (size_t n = 0; n < nodes_.size(); ++n)
      while (take_in_maker(n)) {
      }
    size_t at = 0;
    std::erase_if(nodes_, [&](const Node&) { return gone_[at++]; });
  }

 private:
  const Shape& shape(ValueId value) const { return graph_.values[value].type.shape; }

  std::optional<Elementwise> elementwise(const Node& node) const {
    if (node.attrs.has("over_tokens")) return std::nullopt;  // its operands are all-reduced first
    std::optional<sdk::PointwiseProgram> program = as_pointwise(*node.op, node.attrs, node.inputs.size());
    if (!program) return std::nullopt;
    Elementwise made{std::move(*program), {}};
    if (node.attrs.has("over")) made.masks = node.attrs.integers("over");
    const size_t rank = shape(node.outputs[0]).size();
    for (size_t i = made.masks.size(); i < node.inputs.size(); ++i) {
      int64_t mask = 0;
      for (const int place : sdk::pointwise_places(shape(node.inputs[i]).size(), rank, -1)) mask |= int64_t{1} << place;
      made.masks.push_back(mask);
    }
    return made;
  }

  // Merges the op that makes an input of node `n` into it. Returns whether there was one.
  bool take_in_maker(size_t n) {
    Node& node = nodes_[n];
    if (gone_[n] || (node.op->distribution != Distribution::elementwise && node.op != &ops::pointwise)) return false;
    for (const ValueId value : node.inputs) {
      const int at = maker_[value];
      if (at < 0 || gone_[at]) continue;
      const Node& maker = nodes_[at];
      const bool only = readers_[value] == std::count(node.inputs.begin(), node.inputs.end(), value);
      if (!only || maker.call != node.call || (maker.op != &ops::pointwise && node.op != &ops::pointwise) ||
          shape(value) != shape(node.outputs[0]))
        continue;
      const std::optional<Elementwise> first = elementwise(maker), second = elementwise(node);
      if (first && second && merge(maker, *first, node, *second, value)) {
        gone_[at] = true;
        return true;
      }
    }
    return false;
  }

  bool merge(const Node& maker, const Elementwise& first, Node& node, const Elementwise& second, ValueId value) {
    std::vector<ValueId> inputs;
    std::vector<int64_t> masks;
    const auto place = [&](ValueId input, int64_t mask) {
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i] == input && masks[i] == mask) return PointwiseBuilder::input(static_cast<int>(i));
      inputs.push_back(input);
      masks.push_back(mask);
      return PointwiseBuilder::input(static_cast<int>(inputs.size()) - 1);
    };
    PointwiseBuilder builder;
    std::vector<PointwiseBuilder::Operand> of_first, of_second;
    for (size_t i = 0; i < maker.inputs.size(); ++i) of_first.push_back(place(maker.inputs[i], first.masks[i]));
    const PointwiseBuilder::Operand result = builder.append(first.program, of_first);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      of_second.push_back(node.inputs[i] == value ? result : place(node.inputs[i], second.masks[i]));
    const sdk::PointwiseProgram program = builder.finish(builder.append(second.program, of_second));
    if (inputs.size() > sdk::kMostPointwiseInputs || program.size() > most_) return false;
    Attrs attrs;
    attrs.set("program", sdk::pointwise_text(program));
    if (maker.attrs.has("over") || node.attrs.has("over")) attrs.set("over", masks);
    if (attrs.has("over") || maker.attrs.has("shape") || node.attrs.has("shape"))
      attrs.set("shape", shape(node.outputs[0]));
    for (const Node* one : {&maker, static_cast<const Node*>(&node)})
      if (one->attrs.has("rows_axis")) attrs.set("rows_axis", one->attrs.text("rows_axis"));
    for (const ValueId input : maker.inputs) --readers_[input];
    for (const ValueId input : node.inputs) --readers_[input];
    for (const ValueId input : inputs) ++readers_[input];
    node.op = &ops::pointwise;
    node.inputs = std::move(inputs);
    node.attrs = std::move(attrs);
    return true;
  }

  Graph& graph_;
  std::vector<Node>& nodes_;
  size_t most_;
  Table<ValueId, int> maker_;
  Table<ValueId, int64_t> readers_;
  std::vector<bool> gone_;
};

}  // namespace

void merge_pointwise(CompileState& state) {
  if (std::none_of(state.graph.nodes.begin(), state.graph.nodes.end(),
                   [](const Node& node) { return node.op == &ops::pointwise; }))
    return;
  Merger merger(state.graph, state.graph.nodes, kMostForward);
  merger.read(state.graph.loss);
  merger.run();
}

void merge_gradients(CompileState& state) {
  if (std::none_of(state.backward.begin(), state.backward.end(),
                   [](const Node& node) { return node.op == &ops::pointwise; }))
    return;
  Merger merger(state.graph, state.backward, kMostBackward);
  for (const ValueId gradient : state.parameter_grad) merger.read(gradient);
  merger.run();
}

}  // namespace prun
