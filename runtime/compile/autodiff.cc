// Reverse-mode differentiation of the model graph: walks the nodes backward from the loss, and each op's derivative
// rule records backward nodes. The gradient contributions of a value with several readers are added in order of
// arrival; those of adjacent slices are concatenated, so that q, k and v of a fused qkv need no sum.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "compile/compile_state.h"
#include "ir/ops.h"

namespace prun {
namespace {

class Recorder final : public GradientBuilder {
 public:
  explicit Recorder(CompileState& state) : state_(state), graph_(state.graph) {
    gradient_.assign(graph_.values.size(), -1);
    wants_.assign(graph_.values.size(), false);
    for (size_t v = 0; v < graph_.values.size(); ++v)
      wants_[v] = graph_.values[v].kind == ValueKind::parameter && !graph_.values[v].frozen;
    for (const Node& node : graph_.nodes) {
      bool any = false;
      for (ValueId input : node.inputs) any = any || wants(input);
      any = any && !(node.op == &ops::copy && node.attrs.has("stop"));
      for (size_t i = 0; i < node.outputs.size(); ++i)  // statistics and ids are constants
        wants_[node.outputs[i]] = any && (i < node.op->side_first || i >= node.op->side_end) &&
                                  computes(graph_.values[node.outputs[i]].type.dtype);
    }
  }

  TensorType type(ValueId value) const override { return graph_.values[value].type; }
  bool wants(ValueId value) const override { return wants_.has(value) && wants_[value]; }
  ValueId gradient(ValueId value) const override { return gradient_.has(value) ? gradient_[value] : ValueId(); }

  const OpDef* gradient_op(ValueId value) const override {
    const ValueId known = gradient(value);
    for (auto node = state_.backward.rbegin(); node != state_.backward.rend() && !known.none(); ++node)
      if (std::ranges::find(node->outputs, known) != node->outputs.end()) return node->op;
    return nullptr;
  }

  std::vector<ValueId> emit(const OpDef& op, std::vector<ValueId> inputs, std::vector<TensorType> types,
                            Attrs attrs) override {
    copy_shares(op, inputs, types, attrs);
    Node node{&op, std::move(inputs), {}, attrs_.of(attrs), current_->call, current_->site};
    for (size_t i = 0; i < types.size(); ++i) {
      Value value;
      value.name = current_label_;
      value.name.append(".").append(op.name);
      if (types.size() > 1) value.name += std::to_string(i);
      value.type = std::move(types[i]);
      value.site = current_->site;
      node.outputs.push_back(graph_.values.next());
      graph_.values.push_back(std::move(value));
    }
    std::vector<ValueId> outputs = node.outputs;
    if (&op == &ops::pad) note_slice(node);
    state_.backward.push_back(std::move(node));
    return outputs;
  }

  void contribute(ValueId value, ValueId gradient) override {
    gradient = rounded(value, gradient);
    ValueId& known = gradient_[value];
    Value& new_gradient = graph_.values[gradient];
    if (known < 0) {
      new_gradient.name = "d " + graph_.values[value].name;
      known = gradient;
      return;
    }
    if (begins_rounds(gradient)) {
      before_rounds_.push_back({value, known, current_});
      return replace(value, gradient);
    }
    std::optional<ValueId> sum = joined_slices(known, gradient);
    if (!sum) sum = emit(ops::add, {known, gradient}, {new_gradient.type}, {})[0];
    graph_.values[*sum].name = "d " + graph_.values[value].name;
    known = *sum;
  }

  void replace(ValueId value, ValueId gradient) override {
    gradient_[value] = gradient;
    graph_.values[gradient].name = "d " + graph_.values[value].name;
  }

  void run() {
    std::set<ValueId> maybe_unwanted, losses;
    for (const LossTerm& term : loss_terms(graph_))
      if (term.optimised) losses.insert(term.values.begin(), term.values.end());
    // derive() appends to state_.backward, never to graph_.nodes, so that the iterators remain valid.
    for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend(); ++node) {
      if (!node->attrs.has("round")) add_those_before_rounds();
      bool is_loss = false, arrived = false, wanted = false;
      for (ValueId output : node->outputs) {
        is_loss = is_loss || losses.contains(output);
        arrived = arrived || gradient(output) >= 0;
      }
      for (ValueId input : node->inputs) wanted = wanted || wants(input);
      if (!(is_loss || arrived) || !wanted) continue;
      if (node->op->derive == nullptr) throw plan_error(fmt::format("{} has no gradient", node->op->name), node->site);
      current_ = &*node;
      current_label_ = graph_.values[node->outputs.front()].name;
      // The rule may grow graph_.values, which invalidates references, so it reads copies.
      const std::vector<ValueId> inputs = node->inputs, outputs = node->outputs;
      const Attrs attrs = node->attrs;
      const size_t before = state_.backward.size();
      try {
        node->op->derive(*this, NodeView{inputs, outputs, attrs});
      } catch (const Error& error) {
        if (error.site()) throw;
        throw plan_error(error.message(), node->site);
      }
      const bool all = std::all_of(inputs.begin(), inputs.end(), [&](ValueId input) { return wants(input); });
      for (size_t n = before; n < state_.backward.size() && !all; ++n)
        maybe_unwanted.insert(state_.backward[n].outputs.begin(), state_.backward[n].outputs.end());
    }
    add_those_before_rounds();
    std::erase_if(state_.backward, [&](const Node& node) { return replaced_.contains(node.outputs.front()); });
    for (const Node& node : state_.backward)
      for (ValueId input : node.inputs) maybe_unwanted.erase(input);
    for (ValueId gradient : gradient_) maybe_unwanted.erase(gradient);
    for (ValueId value : maybe_unwanted) graph_.values[value].unwanted = true;
    state_.parameter_grad.assign(graph_.values.size(), -1);
    for (size_t v = 0; v < gradient_.size(); ++v)
      if (graph_.values[v].kind == ValueKind::parameter) state_.parameter_grad[v] = gradient_[v];
  }

 private:
  // A gradient that is 0 outside of [first, end) of a dim, where it is a concatenation of `parts`.
  struct Slice {
    int64_t dim, first, end;
    std::vector<ValueId> parts;
    std::vector<ValueId> made;  // results of the nodes that make it
    CallId call;
  };

  // A gradient that a parameter had before the rounds of a dropless mixture, of which `node` is one.
  struct BeforeRounds {
    ValueId parameter, gradient;
    const Node* node;
  };

  bool begins_rounds(ValueId gradient) const {
    const Node& last = state_.backward.back();
    return last.op == &ops::expert_linear_dw && last.attrs.has("round") && last.outputs.front() == gradient;
  }

  // Adds them after the rounds, which add up theirs in place (expert_linear_dw_add).
  void add_those_before_rounds() {
    for (const BeforeRounds& each : std::exchange(before_rounds_, {})) {
      current_ = each.node;
      current_label_ = graph_.values[each.node->outputs.front()].name;
      contribute(each.parameter, each.gradient);
    }
  }

  void note_slice(const Node& pad) {
    if (pad.attrs.number("value") != 0) return;
    const int64_t dim = pad.attrs.integer("dim"), first = pad.attrs.integer("before");
    slices_[pad.outputs[0]] = {dim,        first,       first + graph_.values[pad.inputs[0]].type.shape[dim],
                               pad.inputs, pad.outputs, pad.call};
  }

  // Returns the sum of two gradients that are slices side by side, without an addition; nullopt: they are not.
  std::optional<ValueId> joined_slices(ValueId a, ValueId b) {
    if (!slices_.contains(a) || !slices_.contains(b)) return std::nullopt;
    Slice left = slices_[a], right = slices_[b];
    if (left.first > right.first) std::swap(left, right);
    if (left.dim != right.dim || left.end != right.first || left.call != right.call || left.call != current_->call)
      return std::nullopt;
    const TensorType whole = graph_.values[a].type;
    Slice joined = left;
    joined.end = right.end;
    joined.parts.insert(joined.parts.end(), right.parts.begin(), right.parts.end());
    replaced_.insert(left.made.begin(), left.made.end());
    replaced_.insert(right.made.begin(), right.made.end());
    TensorType type = whole;
    type.shape[joined.dim] = joined.end - joined.first;
    Attrs attrs;
    attrs.set("dim", joined.dim);
    const ValueId together = emit(ops::concat, joined.parts, {type}, attrs)[0];
    if (type.shape == whole.shape) return together;
    attrs.set("before", joined.first);
    attrs.set("after", whole.shape[joined.dim] - joined.end);
    const ValueId sum = emit(ops::pad, {together}, {whole}, attrs)[0];
    joined.made = {together, sum};
    slices_[sum] = std::move(joined);
    return sum;
  }

  // Casts the gradient of a parameter to f32 (unless it is f64), that of an activation to its dtype.
  ValueId rounded(ValueId value, ValueId gradient) {
    const bool parameter = graph_.values[value].kind == ValueKind::parameter;
    const TensorType type = graph_.values[gradient].type;
    const Dtype own = graph_.values[value].type.dtype;
    const Dtype wanted = parameter && own != Dtype::f64 ? Dtype::f32 : own;
    if (type.dtype == wanted) return gradient;
    Attrs attrs;
    attrs.set("dtype", std::string(dtype_name(wanted)));
    return emit(ops::cast, {gradient}, {{wanted, type.shape}}, attrs)[0];
  }

  // GEMMs of backward count for the model as much as those of forward (ir/op_cost.h). All ops of a round are
  // marked, unless they add its result to the gradient of a value that is of no round.
  void copy_shares(const OpDef& op, const std::vector<ValueId>& inputs, const std::vector<TensorType>& types,
                   Attrs& attrs) const {
    const Attrs& forward = current_->attrs;
    if (forward.has("round") && &op != &ops::add) attrs.set("round", forward.integer("round"));
    if (!forward.has("routed") && !forward.has("replicas")) return;
    std::vector<TensorType> read;
    read.reserve(inputs.size());
    for (const ValueId input : inputs) read.push_back(graph_.values[input].type);
    if (op_cost(op, read, types, attrs).model == 0) return;
    if (forward.has("routed")) attrs.set("routed", forward.number("routed"));
    if (forward.has("replicas")) attrs.set("replicas", forward.integer("replicas"));
  }

  CompileState& state_;
  Graph& graph_;
  Table<ValueId, ValueId> gradient_;
  std::map<ValueId, Slice> slices_;
  std::vector<BeforeRounds> before_rounds_;
  std::set<ValueId> replaced_;  // results of nodes that a concatenation replaced
  Table<ValueId, bool> wants_;
  SharedAttrs attrs_;
  const Node* current_ = nullptr;
  std::string current_label_;
};

// Throws plan_error for a parameter without a gradient. One trained twin is enough, because twins share the reduced
// gradient of all of them.
void require_trained(const CompileState& state) {
  const Table<UnitId, Unit>& units = state.graph.units;
  std::set<std::pair<UnitId, int>> trained;  // unit (a twin's original) and index of its parameter
  const auto each = [&](auto take) {
    for (UnitId id : units.ids())
      for (int i = 0; i < std::ssize(units[id].parameters); ++i)
        take(std::pair(!units[id].twin_of.none() ? units[id].twin_of : id, i), units[id].parameters[i]);
  };
  each([&](const auto& key, ValueId parameter) {
    if (!state.parameter_grad[parameter].none()) trained.insert(key);
  });
  each([&](const auto& key, ValueId parameter) {
    const Value& value = state.graph.values[parameter];
    if (trained.count(key) != 0 || value.frozen) return;
    throw plan_error(fmt::format("parameter '{}' does not reach the loss: it would never be trained", value.name),
                     value.site);
  });
}

// Where ranks' gradients of a parameter are partial sums, each rank contributes its share of an L2 loss's gradient.
void share_penalties(CompileState& state) {
  for (Node& node : state.backward) {
    if (node.op != &ops::squares_grad) continue;
    const std::vector<std::string>& axes = state.graph.values[node.inputs[0]].partial_over;
    double ranks = 1;
    std::string names;
    for (const std::string& axis : axes) {
      ranks *= state.plan.mesh.size(axis);
      names += (names.empty() ? "" : ",") + axis;
    }
    if (axes.empty()) continue;
    node.attrs.set("factor", 1 / ranks);
    node.attrs.set("partial_over", names);
  }
}

// Makes the gradients of routers read the loads of all ranks. Drops the all-reduces of loads that nothing reads,
// because all parameters up to the router are frozen.
void read_global_counts(CompileState& state) {
  std::set<ValueId> read;
  for (Node& node : state.backward)
    for (ValueId& input : node.inputs) {
      const auto global = state.global_counts.find(input);
      if (node.op == &ops::route_grad && global != state.global_counts.end()) input = global->second;
      read.insert(input);
    }
  std::vector<Node>& nodes = state.graph.nodes;
  for (const Node& node : nodes) read.insert(node.inputs.begin(), node.inputs.end());
  for (const auto& [own, global] : state.global_counts)
    for (ValueId sum = global; sum != own && !read.contains(sum);) {
      const auto node =
          std::ranges::find_if(nodes, [&](const Node& each) { return std::ranges::count(each.outputs, sum) > 0; });
      sum = node->inputs.front();
      read.erase(sum);  // no other all_reduce reads it (sum_over_tokens)
      nodes.erase(node);
    }
}

}  // namespace

void differentiate(CompileState& state) {
  if (state.graph.loss < 0) throw plan_error("the plan has no loss: add loss = prun.losses.…", state.plan.mesh_site);
  Recorder recorder(state);
  if (!recorder.wants(state.graph.loss) &&
      std::ranges::any_of(state.graph.values, [](const Value& v) { return v.frozen; }))
    throw plan_error("the loss depends on no parameter that is trained: those that reach it are frozen",
                     state.graph.values[state.graph.loss].site);
  for (const LossTerm& term : state.graph.terms)
    if (term.optimised && !term.values.empty() &&
        std::ranges::none_of(term.values, [&](ValueId value) { return recorder.wants(value); }))
      throw plan_error(fmt::format("the part '{}' of the loss depends on no parameter that is trained: "
                                   "return it as a metric instead",
                                   state.graph.values[term.values.front()].name),
                       state.graph.values[term.values.front()].site);
  recorder.run();
  read_global_counts(state);
  share_penalties(state);
  require_trained(state);
}

}  // namespace prun
