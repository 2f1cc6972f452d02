// Muon's updates: the direction of each matrix is orthogonalized whole, once, by one of the ranks that hold it.
//
//   muon_momentum   each rank: its part of the gradients -> its part of the directions
//   all_gather      over the axis of shards, then over the axis that splits the matrices: whole directions
//   orthogonalize   the owner of a matrix writes it to its chunk
//   all_gather      over the owners' axes: all chunks
//   muon            each rank updates its part of the parameters
//
// Surprising fact: units wait until their matrices keep the owners about equally busy, so that a group has several
// units if a unit has fewer matrices than there are owners.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "compile/ir_build.h"
#include "compile/matrix_split.h"
#include "compile/optimizer_step.h"
#include "compile/update_settings.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr double kImbalance = 1.2;  // busiest owner's work over the mean, at which a group is complete

// Returns whether the last dim counts outputs: a linear layer's weight is [in, out], other matrices are [out, in].
bool outputs_are_columns(const Graph& graph, ValueId parameter) {
  for (const Node& node : graph.nodes)
    for (const OpDef* op : {&ops::linear, &ops::linear_gelu, &ops::expert_linear})
      if (node.op == op && node.inputs.size() > 1 && node.inputs[1] == parameter)
        return node.attrs.integer("transpose") == 0;
  return false;
}

// Returns whether the parameter is a table, from which an embedding takes rows.
bool is_table(const Graph& graph, ValueId parameter) {
  return std::ranges::any_of(graph.nodes, [&](const Node& node) {
    return (node.op == &ops::embedding || node.op == &ops::positions) &&
           std::ranges::find(node.inputs, parameter) != node.inputs.end();
  });
}

// Throws plan_error if the update of a matrix makes no sense for the parameter.
void require_matrix(const Graph& graph, ValueId parameter, const Site& site) {
  const Value& value = graph.values[parameter];
  const size_t dims = value.type.shape.size();
  if (dims != 2 && dims != 3)
    throw plan_error(
        fmt::format("prun.muon updates matrices, and '{}' has {} dim{}: give it to another optimizer, such as "
                    "prun.groups {{ {{ dims = {}, optimizer = prun.adamw {{}} }}, prun.muon {{}} }}",
                    value.name, dims, dims == 1 ? "" : "s", dims),
        site);
  if (is_table(graph, parameter))
    throw plan_error(
        fmt::format("prun.muon updates matrices that multiply, and '{}' is the table of an embedding, whose rows are "
                    "vectors of their own: give it to another optimizer, such as prun.groups {{ {{ match = \"{}\", "
                    "optimizer = prun.adamw {{}} }}, prun.muon {{}} }}",
                    value.name, value.name),
        site);
}

// Returns the factor of the learning rate, as torch.optim.Muon's adjust_lr_fn.
double adjusted(const Optimizer& optimizer, double outputs, double inputs) {
  switch (static_cast<int>(optimizer.numbers.number("adjust"))) {
    case 1:
      return 0.2 * std::sqrt(std::max(outputs, inputs));
    case 2:
      return std::sqrt(outputs / inputs);
    default:
      return std::sqrt(std::max(1.0, outputs / inputs));
  }
}

}  // namespace

double OptimizerStep::Matrix::cost() const {
  const double whole_rows = static_cast<double>(joined == 1 ? rows * parts : rows),
               whole_columns = static_cast<double>(joined == 2 ? columns * parts : columns);
  const double m = std::min(whole_rows, whole_columns), n = std::max(whole_rows, whole_columns);
  return 4 * m * m * n + 2 * m * m * m;
}

// Returns the axes along which ranks hold the same matrices, or parts of them.
std::vector<std::string> OptimizerStep::owner_axes(UnitId unit) const {
  const Value& first = state_.graph.values[state_.graph.units[unit].parameters.front()];
  const ClassStrategies& strategies = state_.strategies.of(state_.graph.units[unit]);
  const SplitAxes apart(matrix_split(first).apart);
  std::vector<std::string> axes;
  for (const Axis& axis : state_.plan.mesh.axes()) {
    const bool stages = state_.plan.pipeline && state_.plan.pipeline->axis == axis.name;
    if (axis.size > 1 && !stages && !apart.has(axis.name) && !strategies.synchronizes_over(axis.name))
      axes.push_back(axis.name);
  }
  return axes;
}

void OptimizerStep::update_by_matrix(UnitId unit, TensorId clip) {
  const Optimizer& optimizer = state_.optimizer_of(unit);
  const std::vector<ValueId>& parameters = state_.graph.units[unit].parameters;
  const std::string axes = join(owner_axes(unit), ",");
  MatrixGroup& group = groups_[axes];
  std::string join;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Value& value = state_.graph.values[parameters[i]];
    const Shape& shape = value.type.shape;
    require_matrix(state_.graph, parameters[i], optimizer.site);
    const std::string over = matrix_split(value).joined;
    const bool joins = !over.empty() && state_.plan.mesh.size(over) > 1;
    if (joins) join = over;
    Matrix matrix{group.units.size(), state_.layouts[unit].start[i], shape[shape.size() - 2], shape.back()};
    if (joins) {
      matrix.joined = value.split_dim + 1 == std::ssize(shape) ? 2 : 1;
      matrix.parts = state_.plan.mesh.size(over);
    }
    const Shape& whole = value.whole.empty() ? shape : value.whole;
    const auto rows = static_cast<double>(whole[whole.size() - 2]), columns = static_cast<double>(whole.back());
    const bool by_columns = outputs_are_columns(state_.graph, parameters[i]);
    matrix.scale = by_columns ? adjusted(optimizer, columns, rows) : adjusted(optimizer, rows, columns);
    for (int64_t e = 0; e < (shape.size() == 3 ? shape[0] : 1); ++e) {
      group.matrices.push_back(matrix);
      matrix.start += matrix.count();
    }
  }
  group.units.push_back(unit);
  group.joins.push_back(join);
  own(group, axes);
  const double all = std::accumulate(group.work.begin(), group.work.end(), 0.0),
               most = *std::max_element(group.work.begin(), group.work.end());
  if (most * static_cast<double>(group.work.size()) <= kImbalance * all) finish_group(axes, clip);
}

// Assigns the group's matrices to owners: the largest first, each to the owner with the least work so far.
void OptimizerStep::own(MatrixGroup& group, const std::string& axes) {
  int64_t owners = 1;
  for (const Axis& axis : state_.plan.mesh.axes())
    if (("," + axes + ",").find("," + axis.name + ",") != std::string::npos) owners *= axis.size;
  std::vector<double> work = work_[axes];
  work.resize(owners, 0.0);
  group.work.assign(owners, 0.0);
  std::vector<size_t> order(group.matrices.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return group.matrices[i].cost(); });
  std::vector<int64_t> ends(owners, 0);
  for (const size_t i : order) {
    Matrix& matrix = group.matrices[i];
    matrix.owner = std::min_element(work.begin(), work.end()) - work.begin();
    matrix.offset = ends[matrix.owner];
    ends[matrix.owner] += matrix.elements();
    work[matrix.owner] += matrix.cost();
    group.work[matrix.owner] += matrix.cost();
  }
}

// Returns the unit's whole directions: [n], or [parts, n] if its matrices are joined over an axis.
TensorId OptimizerStep::direction(UnitId unit, const std::string& join, TensorId clip) {
  const UnitStorage& storage = state_.storage[unit];
  const Optimizer& optimizer = state_.optimizer_of(unit);
  const std::string& name = state_.unit_name(unit);
  const auto tensor = [&](const char* what, Shape shape) {
    return emitter_.activation(name + what, {state_.master_dtype(), std::move(shape)}, optimizer.site);
  };
  const auto gather = [&](TensorId from, TensorId to, const std::string& axis, bool parts) {
    Op op = make_op(ops::all_gather, {from}, {to}, Phase::step, optimizer.site);
    op.axis = axis;
    op.unit = name;
    if (parts) op.attrs.set("by_parameter", int64_t{1});
    emitter_.communicate("", std::move(op));
  };
  TensorId part = tensor(".direction", {storage.shard});
  Op op = make_op(*optimizer.op->optimizer->direction, {storage.grad, storage.master, storage.optimizer[0]},
                  {part, storage.optimizer[0]}, Phase::step, optimizer.site);
  if (!clip.none()) op.reads.push_back(clip);
  for (const char* number : {"momentum", "nesterov"}) op.attrs.set(number, optimizer.numbers.number(number));
  op.unit = name;
  emitter_.compute(std::move(op));
  int64_t n = storage.shard;
  const std::vector<std::string> shards = storage.axes();
  for (size_t i = shards.size(); i-- > 0;) {  // the last axis has cut the pieces of the others
    const int64_t ranks = state_.plan.mesh.size(shards[i]);
    if (ranks == 1) continue;
    n *= ranks;
    const TensorId whole = tensor(i > 0 ? ".pieces" : ".directions", {n});
    gather(part, whole, shards[i], false);
    part = whole;
  }
  if (join.empty()) return part;
  const TensorId all = tensor(".joined", {state_.plan.mesh.size(join), n});
  gather(part, all, join, true);
  return all;
}

// Returns the chunks of all owners. `chunk`: receives the elements of one.
TensorId OptimizerStep::orthogonalized(const MatrixGroup& group, const std::vector<TensorId>& directions,
                                       const std::string& axes, int64_t& chunk) {
  const Optimizer& optimizer = state_.optimizer_of(group.units.front());
  std::vector<int64_t> of, starts, rows, columns, joined, owners, offsets;
  chunk = 0;
  for (const Matrix& matrix : group.matrices) {
    of.push_back(static_cast<int64_t>(matrix.unit));
    starts.push_back(matrix.start);
    rows.push_back(matrix.rows);
    columns.push_back(matrix.columns);
    joined.push_back(matrix.joined);
    owners.push_back(matrix.owner);
    offsets.push_back(matrix.offset);
    chunk = std::max(chunk, matrix.offset + matrix.elements());
  }
  const auto tensor = [&](const std::string& name, int64_t elements) {
    return emitter_.activation(name, {state_.master_dtype(), {elements}}, optimizer.site);
  };
  const std::string& first = state_.unit_name(group.units.front());
  TensorId made = tensor(first + ".orthogonal", chunk);
  Op op = make_op(ops::orthogonalize, directions, {made}, Phase::step, optimizer.site);
  op.attrs.set("of", of), op.attrs.set("starts", starts), op.attrs.set("rows", rows);
  op.attrs.set("columns", columns), op.attrs.set("joined", joined), op.attrs.set("owners", owners);
  op.attrs.set("offsets", offsets), op.attrs.set("axes", axes);
  for (const char* number : {"steps", "a", "b", "c", "norm_eps"})
    op.attrs.set(number, optimizer.numbers.number(number));
  if (state_.plan.param_dtype == Dtype::bf16) op.attrs.set("tf32", int64_t{1});
  op.unit = first;
  emitter_.compute(std::move(op));
  std::vector<Axis> over;
  for (const Axis& axis : state_.plan.mesh.axes())
    if (("," + axes + ",").find("," + axis.name + ",") != std::string::npos) over.push_back(axis);
  int64_t elements = chunk;
  for (size_t i = over.size(); i-- > 0;) {  // the last axis numbers neighbors
    elements *= over[i].size;
    const TensorId all = tensor(first + ".orthogonal." + over[i].name, elements);
    Op gather = make_op(ops::all_gather, {made}, {all}, Phase::step, optimizer.site);
    gather.axis = over[i].name;
    gather.unit = first;
    emitter_.communicate("", std::move(gather));
    made = all;
  }
  return made;
}

void OptimizerStep::finish_group(const std::string& axes, TensorId clip) {
  const MatrixGroup group = std::move(groups_.at(axes));
  groups_.erase(axes);
  std::vector<double>& work = work_[axes];
  work.resize(group.work.size(), 0.0);
  for (size_t i = 0; i < work.size(); ++i) work[i] += group.work[i];
  std::vector<TensorId> directions;
  for (size_t u = 0; u < group.units.size(); ++u) directions.push_back(direction(group.units[u], group.joins[u], clip));
  int64_t chunk = 0;
  const TensorId made = orthogonalized(group, directions, axes, chunk);
  for (size_t u = 0; u < group.units.size(); ++u) {
    const UnitId unit = group.units[u];
    const UnitStorage& storage = state_.storage[unit];
    Op op = make_op(*state_.optimizer_of(unit).op, {made, storage.master}, {storage.master}, Phase::step,
                    state_.optimizer_of(unit).site);
    if (!clip.none()) op.reads.push_back(clip);
    std::vector<int64_t> starts, counts, places;
    std::vector<double> scales;
    for (const Matrix& matrix : group.matrices) {
      if (matrix.unit != u) continue;
      starts.push_back(matrix.start);
      counts.push_back(matrix.count());
      places.push_back(matrix.owner * chunk + matrix.offset);
      scales.push_back(matrix.scale);
    }
    op.attrs.set("matrix_starts", starts), op.attrs.set("matrix_counts", counts);
    op.attrs.set("matrix_places", places), op.attrs.set("matrix_scales", scales);
    if (!group.joins[u].empty()) op.attrs.set("joined_axis", group.joins[u]);
    set_update_settings(state_, unit, 0, storage.shard, op.attrs);
    if (const std::string shards = state_.shard_axis(unit); !shards.empty())
      op.attrs.set("axis", shards), op.attrs.set("shard", storage.shard);
    op.unit = state_.unit_name(unit);
    emitter_.compute(std::move(op));
    finish(unit, {storage.grad, storage.master, storage.optimizer, storage.compute}, false);
  }
}

}  // namespace prun
