// Placements and their conversions. An all-gather is followed by join_pieces, a reduce-scatter preceded by cut_pieces,
// because collectives concatenate the ranks' contiguous pieces.
#include "compile/distributor.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "ir/split_axes.h"

namespace prun {
namespace {

enum Conversion { kWhole, kReplicated, kPieces };  // kReplicated is kReplicatedValue

const Strategy* strategy_of(const Plan& plan, const std::string& axis) {
  for (const Strategy& strategy : plan.strategies)
    if (std::find(strategy.axes.begin(), strategy.axes.end(), axis) != strategy.axes.end()) return &strategy;
  return nullptr;
}

}  // namespace

std::string layer_of(const Graph& graph, const Value& parameter) {
  const Unit* unit = &graph.units[parameter.unit];
  if (unit->twin_of >= 0) unit = &graph.units[unit->twin_of];
  std::string name = parameter.name.substr(unit->name.size() + 1);
  return name.substr(0, name.find_last_of('.'));
}

Distributor::Distributor(CompileState& state, std::string axis)
    : state_(state), graph_(state.graph), axis_(std::move(axis)), ranks_(state.plan.mesh.size(axis_)) {
  const Strategy* strategy = strategy_of(state.plan, axis_);
  if (strategy != nullptr) site_ = strategy->site;
  splits_weights_ = strategy != nullptr && strategy->splits == Splits::nothing;
  for (const Value& value : graph_.values) whole_types_.push_back(value.type);
}

void Distributor::fail(const std::string& text) const { throw plan_error(text, site_); }

void Distributor::set_placement(ValueId value, Placement placement) {
  if (!placement_.has(value)) placement_.resize(graph_.values.size());
  placement_[value] = placement;
}

int Distributor::split_dim(ValueId parameter) const {
  const Value& value = graph_.values[parameter];
  const SplitAxes axes(value.split_axis);
  return axes.split == axis_ ? value.split_dim : axes.part == axis_ ? 0 : -1;
}

// Gives each rank an equal share of a dim, or of each block of the last dim, zero-padded to a multiple of the ranks and
// of the parameter's grain.
void Distributor::split_parameter(ValueId parameter, const LayerPlacement& placement, bool bias) {
  Value& value = graph_.values[parameter];
  int dims = std::ssize(value.type.shape), dim = placement.dim;
  if (bias) {
    // A bias is split like the outputs, the weight's last dim.
    if (dim == 0) return;
    dim = 0;
  }
  if (dim >= dims)
    throw plan_error(fmt::format("S({}) of '{}' on axis '{}': the last dim of {} is S({})", dim, value.name, axis_,
                                 shape_text(value.type.shape), dims - 1),
                     placement.site);
  const SplitAxes before(value.split_axis);
  const bool experts = dims == 3 && !before.split.empty() && before.split != axis_ && before.part.empty() &&
                       value.split_dim == 0 && value.whole[0] % state_.plan.mesh.size(before.split) == 0;
  if (!value.split_axis.empty() && !experts)
    throw plan_error(
        fmt::format("'{}' is sharded over '{}' already, and over '{}' here{}", value.name, value.split_axis, axis_,
                    before.part.empty() ? "" : ": at most two axes split a layer"),
        placement.site);
  PRUN_CHECK(value.whole.empty() || value.split_dim == dim || experts,
             value.name);  // pad_vocabulary.cc checks this first
  value.split_axis = experts ? before.split + "," + axis_ : axis_;
  value.split_dim = dim;
  if (value.whole.empty()) value.whole = value.type.shape;
  int64_t local = 0;
  const int64_t extent = experts && dim == 0 ? value.type.shape[0] : value.whole[dim];  // of this rank's part
  std::vector<int64_t> blocks = dim + 1 == dims && !value.blocks.empty() ? value.blocks : std::vector<int64_t>{extent};
  for (int64_t block : blocks) local += run_of(block, ranks_, value.grain);
  value.type.shape[dim] = local;
}

// Returns whether a strategy that shares the axis places the layer, instead of the one whose axis it is.
bool Distributor::is_placed_by_other(const Strategy& owner, const StrategyUnit& of, const std::string& layer) const {
  return std::ranges::any_of(state_.plan.strategies, [&](const Strategy& strategy) {
    return &strategy != &owner && std::ranges::count(strategy.shared, axis_) > 0 &&
           std::ranges::any_of(strategy.units, [&](const StrategyUnit& unit) {
             return unit.unit_class == of.unit_class &&
                    std::ranges::any_of(unit.layers, [&](const LayerPlacement& one) {
                      return one.axis == axis_ && one.layer == layer;
                    });
           });
  });
}

void Distributor::split_parameters() {
  for (const Strategy& strategy : state_.plan.strategies) {
    for (const StrategyUnit& unit : strategy.units) {
      for (const LayerPlacement& placement : unit.layers) {
        if (placement.axis != axis_ || is_placed_by_other(strategy, unit, placement.layer)) continue;
        for (const ValueId v : graph_.values.ids()) {
          const Value& value = graph_.values[v];
          if (value.kind != ValueKind::parameter || graph_.units[value.unit].unit_class != unit.unit_class) continue;
          if (layer_of(graph_, value) == placement.layer) split_parameter(v, placement, value.type.shape.size() == 1);
        }
      }
    }
  }
}

bool Distributor::is_split_over_others(ValueId parameter) const {
  const Value& value = graph_.values[parameter];
  const std::string layer = layer_of(graph_, value), &unit_class = graph_.units[value.unit].unit_class;
  for (const Strategy& strategy : state_.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const LayerPlacement& one : unit.layers)
        if (unit.unit_class == unit_class && one.layer == layer && one.dim == 0 && one.axis != axis_ &&
            state_.plan.mesh.size(one.axis) > 1)
          return true;
  return false;
}

bool Distributor::sequence(const Node& node) const {
  const std::string& unit_class = graph_.units[graph_.calls[node.call].unit].unit_class;
  for (const Strategy& strategy : state_.plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const LayerPlacement& placement : unit.activations)
        if (unit.unit_class == unit_class && placement.axis == axis_) return true;
  return false;
}

std::vector<ValueId> Distributor::emit(const OpDef& op, const std::vector<ValueId>& inputs, Attrs attrs,
                                       const std::vector<TensorType>& types, Placement placement) {
  Node node{&op, inputs, {}, std::move(attrs), current_->call, current_->site};
  for (const TensorType& type : types) {
    Value value;
    value.name = fmt::format("{}.{}", graph_.values[inputs[0]].name, op.name);
    value.type = type;
    value.site = current_->site;
    node.outputs.push_back(graph_.values.next());
    graph_.values.push_back(std::move(value));
  }
  std::vector<ValueId> made = node.outputs;
  nodes_.push_back(std::move(node));
  for (ValueId output : made) set_placement(output, placement);
  return made;
}

void Distributor::define(ValueId value, ValueId now) {
  now_[value] = now;
  graph_.values[now].name = graph_.values[value].name;
}

void Distributor::keep(Node node, Placement placement) {
  bool changed = false;
  std::vector<TensorType> inputs;
  for (ValueId input : node.inputs) inputs.push_back(type(input));
  for (ValueId input : node.inputs)
    changed = changed || this->placement(input) != Placement{} || SplitAxes(graph_.values[input].split_axis).has(axis_);
  if (node.op->infer) {
    std::vector<TensorType> types;
    try {
      types = node.op->infer(inputs, node.attrs);
    } catch (const Error& error) {
      throw plan_error(fmt::format("over axis '{}' of {} ranks: {}", axis_, ranks_, error.message()), node.site);
    }
    for (size_t i = 0; i < types.size(); ++i) graph_.values[node.outputs[i]].type = types[i];
  } else {
    PRUN_CHECK(!changed, fmt::format("{} has no shape rule", node.op->name));
  }
  if (splits_weights_ && placement == Placement{}) count_replicas(node, inputs);
  for (ValueId output : node.outputs) set_placement(output, placement);
  nodes_.push_back(std::move(node));
}

// Notes that every rank of the axis computes the same GEMM, so that it counts once for all of them.
void Distributor::count_replicas(Node& node, const std::vector<TensorType>& inputs) const {
  std::vector<TensorType> outputs;
  for (const ValueId output : node.outputs) outputs.push_back(type(output));
  if (op_cost(*node.op, inputs, outputs, node.attrs).model > 0)
    node.attrs.set("replicas", node.attrs.integer("replicas", 1) * ranks_);
}

ValueId Distributor::convert(ValueId value, bool partial_gradient) {
  Placement from = placement(value);
  Attrs attrs;
  attrs.set("axis", axis_);
  if (from.kind == PlacementKind::invariant)
    return partial_gradient ? emit(ops::enter, {value}, attrs, {type(value)})[0] : value;
  TensorType gathered = type(value), joined = gathered;
  gathered.shape.insert(gathered.shape.begin(), ranks_);
  joined.shape[from.dim] *= ranks_;
  if (whole_types_.has(value) && joined.shape != whole_types_[value].shape)
    fail(fmt::format(
        "'{}' is {}: its dim {} does not divide over the {} ranks of axis '{}', and what reads it needs it whole",
        graph_.values[value].name, shape_text(whole_types_[value].shape), from.dim, ranks_, axis_));
  Attrs join;
  join.set("pieces", int64_t{ranks_});
  join.set("dim", int64_t{from.dim});
  if (!partial_gradient) attrs.set("gradient", std::string("whole"));  // backward takes the rank's piece
  if (is_tokens(value) && partial_gradient) {  // backward gathers again instead of retaining all tokens
    attrs.set("again", int64_t{1});
    join.set("again", int64_t{1});
  }
  ValueId pieces = emit(ops::all_gather, {value}, attrs, {gathered})[0];
  return emit(ops::join_pieces, {pieces}, join, {joined})[0];
}

ValueId Distributor::whole(ValueId value) {
  if (placement(value) == Placement{}) return value;
  auto [it, fresh] = converted_.try_emplace({value, kWhole}, -1);
  if (fresh) it->second = convert(value, false);
  return it->second;
}

ValueId Distributor::replicated(ValueId value) {
  auto [it, fresh] = converted_.try_emplace({value, kReplicated}, -1);
  if (fresh) it->second = convert(value, true);
  return it->second;
}

// Returns the type of a rank's tokens of a whole value; throws plan_error if the ranks do not divide the tokens.
TensorType Distributor::piece_of_tokens(const TensorType& whole) const {
  int64_t tokens = whole.shape.at(1);
  if (tokens % ranks_ != 0)
    fail(fmt::format("{} tokens do not divide over the {} ranks of axis '{}'; the next number that does is {}", tokens,
                     ranks_, axis_, (tokens / ranks_ + 1) * ranks_));
  TensorType piece = whole;
  piece.shape[1] = tokens / ranks_;
  return piece;
}

ValueId Distributor::sum(ValueId partial, bool tokens) {
  Attrs attrs;
  attrs.set("axis", axis_);
  attrs.set("op", std::string("sum"));
  if (!tokens) return emit(ops::all_reduce, {partial}, attrs, {type(partial)})[0];
  TensorType piece = piece_of_tokens(type(partial)), pieces = piece;
  pieces.shape.insert(pieces.shape.begin(), ranks_);
  Attrs cut;
  cut.set("pieces", int64_t{ranks_});
  cut.set("dim", int64_t{1});
  return emit(ops::reduce_scatter, emit(ops::cut_pieces, {partial}, cut, {pieces}), attrs, {piece}, shard_of(1))[0];
}

ValueId Distributor::tokens_of(ValueId value) {
  if (is_tokens(value)) return value;
  piece_of_tokens(type(value));  // throws if the ranks do not divide them
  return piece_of(value, 1);
}

ValueId Distributor::piece_of(ValueId value, int dim) {
  if (placement(value) == shard_of(dim)) return value;
  value = whole(value);
  auto [it, fresh] = converted_.try_emplace({value, kPieces + dim}, -1);
  if (!fresh) return it->second;
  Attrs attrs;
  attrs.set("axis", axis_);
  attrs.set("pieces", int64_t{ranks_});
  attrs.set("dim", int64_t{dim});
  TensorType piece = type(value);
  if (piece.shape.at(dim) % ranks_ != 0)
    fail(fmt::format("dim {} of '{}', {}, does not divide over the {} ranks of axis '{}'", dim,
                     graph_.values[value].name, shape_text(piece.shape), ranks_, axis_));
  piece.shape[dim] /= ranks_;
  return it->second = emit(ops::take_piece, {value}, attrs, {piece}, shard_of(dim))[0];
}

void Distributor::partial_gradient(ValueId parameter) {
  std::vector<std::string>& axes = graph_.values[parameter].partial_over;
  if (std::find(axes.begin(), axes.end(), axis_) == axes.end()) axes.push_back(axis_);
}

void Distributor::run() {
  split_parameters();
  whole_nodes_ = std::move(graph_.nodes);
  for (Node node : whole_nodes_) {
    current_ = &node;
    for (ValueId& input : node.inputs)
      if (auto it = now_.find(input); it != now_.end()) input = it->second;
    distribute_rule (*node.op)(*this, node);
  }
  const auto move = [&](ValueId& value) {
    if (auto it = now_.find(value); it != now_.end()) value = it->second;
  };
  move(graph_.loss);
  for (LossTerm& term : graph_.terms) std::ranges::for_each(term.values, move);
  graph_.nodes = std::move(nodes_);
}

}  // namespace prun
