// Distribution rules of pointwise, reduce_dims, softmax, matmul and cumsum, and the check that none of them, and no
// convolution or pool, combines samples, or tokens under context parallelism, of which each rank has a part.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "compile/distributor.h"
#include "compile/view_dims.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Convolutions and pools, whose windows slide over an image.
bool slides(const OpDef& op) { return &op == &ops::conv || &op == &ops::conv_transpose || &op == &ops::pooling; }

// Returns the dims that the op combines, of an input of this rank.
std::vector<int64_t> combined_dims(const Node& node, int64_t rank) {
  if (node.op == &ops::reduce_dims) return node.attrs.integers("dims");
  if (node.op == &ops::softmax) {
    if (node.attrs.has("causal") || node.attrs.has("window")) return {rank - 2, rank - 1};  // counts rows from 0
    return {rank - 1};
  }
  if (node.op == &ops::cumsum) return {node.attrs.integer("dim")};
  if (node.op == &ops::matmul) return {rank - 2, rank - 1};
  std::vector<int64_t> dims;
  if (slides(*node.op))
    for (int64_t d = node.op == &ops::pooling ? 2 : 1; d < rank; ++d) dims.push_back(d);
  return dims;
}

bool holds(const std::vector<int64_t>& dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

// Returns whether a linear layer's weight is an activation, as in nn.matmul(a, b) of two dims, or a convolution's.
bool multiplies_activations(const Graph& graph, const Node& node) {
  const bool product = node.op == &ops::linear || (slides(*node.op) && node.op != &ops::pooling);
  return product && graph.values[node.inputs[1]].kind != ValueKind::parameter;
}

// Follows the dim of samples or of tokens through the graph, from the inputs on.
class DimCheck {
 public:
  DimCheck(CompileState& state, int64_t dim, std::string what, std::string divider)
      : graph_(state.graph),
        what_(std::move(what)),
        divider_(std::move(divider)),
        first_(dim),
        dim_(graph_.values.size(), -1) {
    for (const ValueId v : graph_.values.ids())
      if (graph_.values[v].kind == ValueKind::input && std::ssize(graph_.values[v].type.shape) > dim)
        dim_[v.index()] = dim;
  }

  void run() {
    for (const Node& node : graph_.nodes) {
      if (first_ == 0 && node.attrs.has("samples")) {  // share_statistics makes the result whole
        require_samples(node);
        continue;
      }
      if (node.attrs.has("over_tokens")) continue;  // reads sums over all tokens (sum_over_tokens)
      if (node.attrs.has("of_rank")) continue;      // each rank reports a number of its own
      int64_t found = -1;
      for (const ValueId input : node.inputs) {
        const int64_t dim = dim_[input.index()];
        if (dim < 0) continue;
        const bool image = slides(*node.op) && input == node.inputs[0];
        if (is_arithmetic(*node.op) || image) require_apart(node, input, dim);
        if (multiplies_activations(graph_, node) && input == node.inputs[1]) fail(node, input, dim);
        found = after(node, input, dim);
      }
      if (repeats_samples(node)) found = 0;
      if (node.op == &ops::pointwise && found >= 0) require_alike(node, found);
      for (const ValueId output : node.outputs)
        if (found < rank(output)) dim_[output.index()] = found;
    }
  }

 private:
  int64_t after(const Node& node, ValueId input, int64_t dim) const {
    if (is_arithmetic(*node.op)) return dim_after_arithmetic(node, rank(input), rank(node.outputs[0]), dim);
    if (!is_view(*node.op)) return dim;
    const Shape &x = graph_.values[input].type.shape, &y = graph_.values[node.outputs[0]].type.shape;
    return dim_after(node, x, static_cast<int>(dim), y, false).value_or(-1);
  }
  // Returns whether the node repeats a value that does not depend on samples once a sample.
  bool repeats_samples(const Node& node) const {
    return node.op == &ops::expand && first_ == 0 && dim_[node.inputs[0].index()] < 0 &&
           graph_.values[node.inputs[0]].type.shape.front() == 1 &&
           graph_.values[node.outputs[0]].type.shape.front() > 1;
  }
  int64_t rank(ValueId value) const { return std::ssize(graph_.values[value].type.shape); }
  std::string shape(ValueId value) const { return shape_text(graph_.values[value].type.shape); }

  void require_samples(const Node& node) const {
    if (dim_[node.inputs[0].index()] == 0) return;
    throw plan_error(
        fmt::format("nn.mean: 'samples' says that dim 0 of {} are samples, which they are not", shape(node.inputs[0])),
        node.site);
  }
  void require_apart(const Node& node, ValueId input, int64_t dim) const {
    if (holds(combined_dims(node, rank(input)), dim)) fail(node, input, dim);
  }
  [[noreturn]] void fail(const Node& node, ValueId input, int64_t dim) const {
    throw plan_error(fmt::format("{} combines dim {} of {}, the {} that {} divides; it can combine other dims",
                                 node.op->name, dim, shape(input), what_, divider_),
                     node.site);
  }
  // An operand without samples must not extend along them.
  void require_alike(const Node& node, int64_t dim) const {
    for (const ValueId input : node.inputs) {
      const int64_t mine = dim - rank(node.outputs[0]) + rank(input);
      const bool split = dim_[input.index()] >= 0;
      if (split ? dim_[input.index()] == mine : mine < 0 || graph_.values[input].type.shape[mine] == 1) continue;
      throw plan_error(
          fmt::format("{} combines '{}', {}, with dim {} of {}, the {} that {} divides; the operand should "
                      "have 1 there",
                      node.op->name, graph_.values[input].name, shape(input), dim, shape(node.outputs[0]), what_,
                      divider_),
          node.site);
    }
  }

  const Graph& graph_;
  std::string what_, divider_;
  const int64_t first_;       // of the inputs
  std::vector<int64_t> dim_;  // by value: the dim that counts samples or tokens; -1 = none
};

// The dim of an input that the output's dim comes from; -1 = the input does not have it, or broadcasts along it. A
// rank's part of a split dim may have the size 1 without broadcasting.
int input_dim(const Distributor& d, const Node& node, size_t i, int dim) {
  const Shape& x = d.type(node.inputs[i]).shape;
  const Shape& y = d.whole_type(node.outputs[0]).shape;
  const int mine = dim - static_cast<int>(std::ssize(y) - std::ssize(x));
  if (mine >= 0 && d.placement(node.inputs[i]) == shard_of(mine)) return mine;
  return mine < 0 || (x[mine] == 1 && y[dim] != 1) ? -1 : mine;
}

[[noreturn]] void fail(const Distributor& d, const Node& node, ValueId value, int dim) {
  throw plan_error(fmt::format("{} combines dim {} of '{}', {}, which axis '{}' of {} ranks divides; shard the layer "
                               "before it otherwise",
                               node.op->name, dim, d.graph().values[value].name, shape_text(d.whole_type(value).shape),
                               d.axis(), d.ranks()),
                   node.site);
}

}  // namespace

// Shards remain shards. An operand that is whole along the split dim is converted if it is an activation; a parameter
// must be split alike or broadcast.
void pointwise(Distributor& d, const Node& node) {
  Node copy = node;
  int dim = -1;
  bool tokens = false;
  const int rank = static_cast<int>(std::ssize(d.whole_type(node.outputs[0]).shape));
  const auto split_of = [&](ValueId input) {
    const int own = d.graph().values[input].kind == ValueKind::parameter ? d.split_dim(input) : -1;
    if (own >= 0) return own;
    return d.placement(input).kind == PlacementKind::shard ? d.placement(input).dim : -1;
  };
  const auto output_dim_of = [&](ValueId input) {
    const int split = split_of(input);
    return split < 0 ? -1 : split + rank - static_cast<int>(std::ssize(d.type(input).shape));
  };
  for (const ValueId input : node.inputs) {
    const int to = output_dim_of(input);
    if (to >= 0 && (dim < 0 || d.is_tokens(input))) dim = to;
    tokens = tokens || d.is_tokens(input);
  }
  if (dim < 0) return d.keep(std::move(copy), {});
  bool fits = true;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    fits = fits && output_dim_of(node.inputs[i]) == (input_dim(d, node, i, dim) < 0 ? -1 : dim);
  if (!fits && !tokens) {
    // All operands become whole.
    for (ValueId& input : copy.inputs) {
      if (d.split_dim(input) >= 0) fail(d, node, input, d.split_dim(input));
      if (d.graph().values[input].kind != ValueKind::parameter) input = d.whole(input);
    }
    return d.keep(std::move(copy), {});
  }
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    ValueId& input = copy.inputs[i];
    const int mine = input_dim(d, node, i, dim);
    if (tokens && mine >= 0 && split_of(input) != mine) {
      if (d.split_dim(input) >= 0) fail(d, node, input, mine);
      input = d.piece_of(input, mine);
    }
    // The gradient of an operand that broadcasts along the split dim is a partial sum on each rank.
    if (mine < 0) {
      if (d.graph().values[input].kind == ValueKind::parameter)
        d.partial_gradient(input);
      else
        input = d.replicated(input);
    }
  }
  d.keep(std::move(copy), shard_of(dim));
}

// reduce_dims, softmax, matmul and cumsum: a split dim that the op does not combine remains split.
void reduction(Distributor& d, const Node& node) {
  Node copy = node;
  int dim = -1;
  bool alike = true;
  for (const ValueId input : node.inputs) {
    if (d.split_dim(input) >= 0) fail(d, node, input, d.split_dim(input));
    const int split = d.placement(input).kind == PlacementKind::shard ? d.placement(input).dim : -1;
    alike = alike && split == (input == node.inputs[0] ? split : dim);
    dim = input == node.inputs[0] ? split : dim;
  }
  const int64_t rank = std::ssize(d.type(node.inputs[0]).shape);
  if (dim >= 0 && alike && !holds(combined_dims(node, rank), dim))
    return d.keep(
        std::move(copy),
        shard_of(static_cast<int>(dim_after_arithmetic(node, rank, std::ssize(d.type(node.outputs[0]).shape), dim))));
  for (ValueId& input : copy.inputs) input = d.whole(input);
  d.keep(std::move(copy), {});
}

bool is_arithmetic(const OpDef& op) {
  return &op == &ops::pointwise || &op == &ops::reduce_dims || &op == &ops::softmax || &op == &ops::matmul ||
         &op == &ops::cumsum;
}

int64_t dim_after_arithmetic(const Node& node, int64_t input_rank, int64_t output_rank, int64_t dim) {
  if (node.op == &ops::pointwise) return dim + output_rank - input_rank;
  if (node.op != &ops::reduce_dims) return dim;
  const std::vector<int64_t> dims = node.attrs.integers("dims"),
                             kept = node.attrs.has("kept") ? node.attrs.integers("kept") : std::vector<int64_t>();
  int64_t to = dim;
  for (const int64_t reduced : dims)
    if (reduced < dim && !holds(kept, reduced)) --to;
  return to;
}

// A rank's mean over its part of the samples is averaged over the ranks, which have equal parts, and so is the gradient
// that arrives. Microbatches have means of their own.
void share_statistics(CompileState& state) {
  Graph& graph = state.graph;
  const auto of_samples = [](const Node& node) { return node.attrs.has("samples"); };
  if (std::ranges::none_of(graph.nodes, of_samples)) return;
  std::vector<std::string> axes;
  for (const std::string& axis : state.plan.batch_axes)
    if (state.plan.mesh.size(axis) > 1) axes.push_back(axis);
  std::map<ValueId, ValueId> whole;
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    for (ValueId& input : node.inputs)
      if (const auto found = whole.find(input); found != whole.end()) input = found->second;
    const bool shares = of_samples(node);
    node.attrs.erase("samples");
    if (shares && !state.data_axes.empty()) node.attrs.set("rows_axis", state.data_axes);  // for the derivative
    nodes.push_back(node);
    if (!shares) continue;
    for (const Strategy& strategy : state.plan.strategies)
      if (strategy.splits == Splits::tokens && state.plan.mesh.size(strategy.axes.front()) > 1)
        throw plan_error(fmt::format("{} combines samples, of which axis '{}' divides the tokens: normalize single "
                                     "tokens, or split the samples",
                                     node.op->name, strategy.axes.front()),
                         node.site);
    ValueId mean = node.outputs[0];
    for (const std::string& axis : axes) {
      Attrs attrs;
      attrs.set("axis", axis);
      attrs.set("op", std::string("avg"));
      attrs.set("gradient", std::string("partial"));
      Value value = graph.values[mean];
      value.name = fmt::format("{}.{}", graph.values[node.outputs[0]].name, axis);
      const ValueId reduced = graph.values.next();
      graph.values.push_back(std::move(value));
      nodes.push_back({&ops::all_reduce, {mean}, {reduced}, std::move(attrs), node.call, node.site});
      state.kept_results.insert(reduced);
      mean = reduced;
    }
    if (!axes.empty()) whole[node.outputs[0]] = mean;
  }
  graph.nodes = std::move(nodes);
}

void check_combined_dims(CompileState& state) {
  if (std::none_of(state.graph.nodes.begin(), state.graph.nodes.end(), [&](const Node& node) {
        return is_arithmetic(*node.op) || slides(*node.op) || multiplies_activations(state.graph, node);
      }))
    return;
  std::string batch;
  for (const std::string& axis : state.plan.batch_axes)
    if (batch.empty() && state.plan.mesh.size(axis) > 1) batch = fmt::format("axis '{}'", axis);
  if (batch.empty() && state.microbatches() > 1) batch = fmt::format("micro = {}", state.microbatches());
  if (!batch.empty()) DimCheck(state, 0, "samples", batch).run();
  for (const Strategy& strategy : state.plan.strategies)
    if (strategy.splits == Splits::tokens && state.plan.mesh.size(strategy.axes.front()) > 1)
      DimCheck(state, 1, "tokens", fmt::format("axis '{}'", strategy.axes.front())).run();
}

}  // namespace prun
