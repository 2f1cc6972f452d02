// Context parallelism: each of c ranks holds two of the 2c chunks of every sample, one from each end, so that causal
// attention costs the same on all ranks. Attention becomes ring attention (Liu et al. 2023, "Ring Attention"); all
// other ops process the rank's tokens only.
#include <fmt/format.h>

#include <algorithm>

#include "compile/distributor.h"
#include "compile/view_dims.h"
#include "ir/ops.h"
#include "ir/ops/rules.h"

namespace prun {
namespace {

class TokenSplitter {
 public:
  TokenSplitter(CompileState& state, const Strategy& strategy)
      : state_(state), strategy_(strategy), axis_(strategy.axes.front()), ranks_(state.plan.mesh.size(axis_)) {}

  void run() {
    split_inputs();
    follows_ = std::ranges::any_of(state_.graph.nodes, [](const Node& node) { return is_view(*node.op); });
    const std::vector<Node> nodes = std::move(state_.graph.nodes);
    state_.graph.nodes.clear();
    for (const Node& node : nodes) rewrite(node);
  }

 private:
  Value& value(ValueId id) { return state_.graph.values[id]; }

  void split_inputs() {
    bool any = false;
    tokens_dim_.resize(state_.graph.values.size(), -1);
    for (const ValueId id : state_.graph.values.ids()) {
      Value& input = value(id);
      if (input.kind != ValueKind::input || !(input.name == "tokens" || input.name == "targets" || input.shares))
        continue;
      any = true;
      int64_t& tokens = input.type.shape.at(1);
      if (tokens % (2 * ranks_) != 0)
        throw plan_error(fmt::format("{} tokens do not divide into the two chunks of each of the {} ranks of axis "
                                     "'{}'; the next number that does is {}",
                                     tokens, ranks_, axis_, (tokens / (2 * ranks_) + 1) * 2 * ranks_),
                         strategy_.site);
      tokens /= ranks_;
      tokens_dim_[id] = 1;
    }
    if (!any)
      throw plan_error(fmt::format("axis '{}' divides the tokens of samples, and this data has none", axis_),
                       strategy_.site);
  }

  void add(Node node) {
    if (node.op->infer) {
      std::vector<TensorType> inputs;
      for (ValueId input : node.inputs) inputs.push_back(value(input).type);
      std::vector<TensorType> types = node.op->infer(inputs, node.attrs);
      for (size_t i = 0; i < types.size(); ++i) value(node.outputs[i]).type = types[i];
    }
    state_.graph.nodes.push_back(std::move(node));
  }

  // Returns the dim that counts the tokens of the value; -1 = none.
  int tokens_dim(ValueId id) {
    if (!tokens_dim_.has(id)) tokens_dim_.resize(state_.graph.values.size(), -1);
    return tokens_dim_[id];
  }

  [[noreturn]] void fail(const Node& node, const std::string& text) const {
    throw plan_error(fmt::format("{}, the tokens that axis '{}' of {} ranks splits", text, axis_, ranks_), node.site);
  }

  // Follows the tokens through the node; a view's sizes become a rank's.
  void follow(Node& node) {
    int dim = -1;
    size_t from = 0;
    for (size_t i = node.inputs.size(); i-- > 0;)
      if (const int one = tokens_dim(node.inputs[i]); one >= 0) dim = one, from = i;
    if (dim < 0) return;
    const Shape local = value(node.inputs[from]).type.shape;
    Shape whole = local;
    whole[dim] *= ranks_;
    if (is_view(*node.op)) {
      const Shape y = value(node.outputs[0]).type.shape;
      const bool alike = std::ranges::all_of(node.inputs, [&](ValueId input) { return tokens_dim(input) == dim; });
      std::optional<int> to;
      if (alike && !mixes_rows(state_.graph, node, dim)) to = dim_after(node, whole, dim, y, true);
      if (!to) fail(node, mixing_text(node, dim, whole));
      if (node.attrs.has("dims")) {
        Shape dims = ops::sizes_of(node.attrs, "dims");
        dims[*to] /= ranks_;
        node.attrs.set("dims", dims);
      }
      tokens_dim_[node.outputs[0]] = *to;
      return;
    }
    const bool anywhere = node.op->distribution == Distribution::elementwise || is_arithmetic(*node.op);
    const bool in_rows = node.op == &ops::linear || node.op->distribution == Distribution::by_rows;
    if (!anywhere && dim != 1 && !(in_rows && dim + 1 < std::ssize(local)))
      fail(node, fmt::format("{} reads dim {} of {}", node.op->name, dim, shape_text(whole)));
    if (is_arithmetic(*node.op))
      dim = static_cast<int>(
          dim_after_arithmetic(node, std::ssize(local), std::ssize(value(node.outputs[0]).type.shape), dim));
    for (const ValueId output : node.outputs)
      if (dim < std::ssize(value(output).type.shape)) tokens_dim_[output] = dim;
  }

  void rewrite(Node node) {
    if (follows_) follow(node);
    auto own_tokens = [&](Attrs& attrs) {
      attrs.set("tokens_axis", axis_);
      attrs.set("chunks", int64_t{2});
    };
    const OpDef* const op = node.op;
    if (op == &ops::attention) {
      node.op = &ops::ring_attention;
      own_tokens(node.attrs);
    } else if (op == &ops::rotary || op == &ops::dropout || op == &ops::positions) {
      own_tokens(node.attrs);
    } else if (op == &ops::combine) {
      node.attrs.set("tokens", node.attrs.integer("tokens") / ranks_);
    }
    if ((op == &ops::route || op == &ops::dispatch || op == &ops::combine) && node.attrs.integer("capacity") > 0)
      node.attrs.set("capacity", (node.attrs.integer("capacity") + ranks_ - 1) / ranks_);
    if (op != &ops::embedding || node.inputs.size() < 3) return add(std::move(node));
    // A rank's tokens are not contiguous, so that a separate op adds the position embeddings.
    Node rows = node, places{&ops::positions, {}, node.outputs, {}, node.call, node.site};
    own_tokens(places.attrs);
    Value sum = value(node.outputs[0]);
    sum.name += ".rows";
    rows.inputs.pop_back();
    rows.outputs = {state_.graph.values.next()};
    state_.graph.values.push_back(std::move(sum));
    places.inputs = {rows.outputs[0], node.inputs[2]};
    add(std::move(rows));
    add(std::move(places));
  }

  CompileState& state_;
  const Strategy& strategy_;
  std::string axis_;
  int64_t ranks_;
  bool follows_ = false;  // the model has views
  Table<ValueId, int> tokens_dim_;
};

}  // namespace

void split_tokens(CompileState& state) {
  const Strategy* splits = nullptr;
  for (const Strategy& strategy : state.plan.strategies) {
    if (strategy.splits != Splits::tokens || state.plan.mesh.size(strategy.axes.front()) == 1) continue;
    if (splits != nullptr)
      throw plan_error(fmt::format("axes '{}' and '{}' would both pass keys round a ring; give one axis the ranks of "
                                   "both",
                                   splits->axes.front(), strategy.axes.front()),
                       strategy.site);
    TokenSplitter(state, strategy).run();
    splits = &strategy;
  }
}

}  // namespace prun
