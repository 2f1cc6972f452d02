// The end of the step: global norm and clip coefficient, then one update of each unit's parameters.
#include <fmt/format.h>

#include "compile/ir_build.h"
#include "compile/step_builder.h"
#include "ir/ops.h"

namespace prun {

void StepBuilder::optimize() {
  const TensorId clip = state_.plan.optimizer.clip > 0 ? clip_coefficient() : TensorId();
  std::vector<UnitId> units;
  for (size_t u = 0; u < state_.graph.units.size(); ++u)
    if (state_.storage[u].here && !state_.graph.units[u].parameters.empty()) units.push_back(static_cast<int>(u));
  for (UnitId unit : units) {
    const UnitStorage& storage = state_.storage[unit];
    if (storage.offload)
      update_offloaded(unit, clip, unit == units.back());
    else
      update(unit, clip, {storage.grad, storage.master, storage.optimizer, storage.compute});
  }
}

// Mesh axes over which ranks hold different parameters.
std::vector<std::string> StepBuilder::split_axes() const {
  std::vector<std::string> axes;
  for (const Axis& axis : state_.plan.mesh.axes())
    for (const Value& value : state_.graph.values)
      if (axis.size > 1 && value.split_axis == axis.name) {
        axes.push_back(axis.name);
        break;
      }
  return axes;
}

// The tensors of a unit's gradient and what the squares in each count: 1 over the number of ranks that have the same
// elements. `starts` is not empty for a shard whose pieces count differently: its only tensor then has several weights.
StepBuilder::Squares StepBuilder::squares_of(UnitId unit, const std::vector<std::string>& split) {
  const UnitStorage& storage = state_.storage[unit];
  const std::vector<ValueId>& parameters = state_.graph.units[unit].parameters;
  Squares squares;
  std::vector<std::pair<int64_t, double>> pieces;  // start, weight; in the order of the layout
  for (size_t i = parameters.size(); i-- > 0;) {
    double weight = 1;
    for (const std::string& axis : split)
      if (state_.graph.values[parameters[i]].split_axis != axis) weight /= state_.plan.mesh.size(axis);
    if (pieces.empty() || pieces.back().second != weight) pieces.emplace_back(state_.layouts[unit].start[i], weight);
  }
  if (pieces.size() == 1) return {{storage.grad}, {pieces[0].second}, {}};
  if (storage.sharded) {
    squares.tensors = {storage.grad};
    for (auto [start, weight] : pieces) squares.starts.push_back(start), squares.weights.push_back(weight);
    return squares;
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    int64_t end = i + 1 < pieces.size() ? pieces[i + 1].first : storage.shard;
    squares.tensors.push_back(
        add_view(program_, unit_name(unit) + ".squares", storage.grad, pieces[i].first, {end - pieces[i].first}));
    squares.weights.push_back(pieces[i].second);
  }
  return squares;
}

// Every element counts once: shards are summed over the axis that shards them, then all over the axes on which ranks
// hold different parameters; tied twins count on one rank.
TensorId StepBuilder::clip_coefficient() {
  Site site = state_.plan.optimizer.site;
  std::vector<std::string> split = split_axes();
  TensorType scalar{state_.master_dtype(), {}};
  auto op = [&](const OpDef& kind, std::vector<TensorId> reads, std::vector<TensorId> writes) {
    Op made;
    made.def = &kind;
    made.reads = std::move(reads);
    made.writes = std::move(writes);
    made.phase = Phase::step;
    made.site = site;
    return made;
  };
  auto sum_over = [&](const std::string& axis, TensorId tensor) {
    Op reduce = op(ops::all_reduce, {tensor}, {tensor});
    reduce.axis = axis;
    reduce.attrs.set("op", std::string("sum"));
    communicate_on(gradient_stream(), std::move(reduce));
  };
  int total = -1;
  auto add = [&](int sum) {
    if (total < 0) {
      total = sum;
      return;
    }
    int both = compute_tensor("norm2.all", scalar, site);
    recorder_.record(0, op(ops::add, {total, sum}, {both}));
    total = both;
  };

  std::map<std::string, Squares> by_axis;  // "" = whole on every rank
  std::map<std::string, std::vector<TensorId>> mixed;
  for (size_t u = 0; u < state_.storage.size(); ++u) {
    const UnitStorage& storage = state_.storage[u];
    const Unit& unit = state_.graph.units[u];
    if (!storage.here || unit.parameters.empty() || unit.twin_of >= 0) continue;
    Squares squares = squares_of(static_cast<int>(u), split);
    Squares& all = by_axis[storage.axis];
    if (squares.starts.empty()) {
      all.tensors.insert(all.tensors.end(), squares.tensors.begin(), squares.tensors.end());
      all.weights.insert(all.weights.end(), squares.weights.begin(), squares.weights.end());
      continue;
    }
    TensorId sum = compute_tensor("norm2." + unit.name, scalar, site);
    Op norm = op(ops::norm2, squares.tensors, {sum});
    norm.attrs.set("piece_starts", squares.starts);
    norm.attrs.set("piece_weights", squares.weights);
    norm.attrs.set("axis", storage.axis);
    norm.unit = unit.name;
    recorder_.record(0, std::move(norm));
    mixed[storage.axis].push_back(sum);
  }
  for (const auto& [axis, squares] : by_axis) {
    std::vector<TensorId> sums = mixed[axis];
    if (!squares.tensors.empty()) {
      TensorId sum = compute_tensor(axis.empty() ? "norm2" : "norm2." + axis, scalar, site);
      Op norm = op(ops::norm2, squares.tensors, {sum});
      if (!split.empty()) norm.attrs.set("weights", squares.weights);
      recorder_.record(0, std::move(norm));
      sums.push_back(sum);
    }
    int shards = sums[0];
    for (size_t i = 1; i < sums.size(); ++i) {
      int both = compute_tensor("norm2.shards", scalar, site);
      recorder_.record(0, op(ops::add, {shards, sums[i]}, {both}));
      shards = both;
    }
    if (!axis.empty()) sum_over(axis, shards);
    add(shards);
  }
  for (const std::string& axis : split) sum_over(axis, total);
  if (state_.plan.pipeline) sum_over(state_.plan.pipeline->axis, total);
  int coefficient = compute_tensor("clip", scalar, site), norm = compute_tensor("grad_norm", scalar, site);
  Op clip = op(ops::clip_coefficient, {total}, {coefficient, norm});
  clip.attrs.set("max", state_.plan.optimizer.clip);
  recorder_.record(0, std::move(clip));
  return coefficient;
}

// One update of a unit, or of a piece of it. Parameters in the dtype of compute are written by the same op where the
// device has such ops.
void StepBuilder::update(UnitId unit, TensorId clip, const Updated& what) {
  const Optimizer& optimizer = state_.plan.optimizer;
  const auto& wants = state_.options.fuses;
  const OpDef* const with_cast = optimizer.op->optimizer->with_cast;
  const bool casts = what.compute >= 0 && with_cast != nullptr && wants && wants(with_cast->name);
  Op op;
  op.def = casts ? with_cast : optimizer.op;
  op.attrs = optimizer.numbers;
  op.reads = {what.grad, what.master};
  op.writes = {what.master};
  for (TensorId slot : what.states) op.reads.push_back(slot), op.writes.push_back(slot);
  if (clip >= 0) op.reads.push_back(clip);
  if (casts) op.writes.push_back(what.compute);
  op.attrs.set("weight_decay", optimizer.weight_decay);
  op.phase = Phase::step;
  op.unit = unit_name(unit);
  op.site = optimizer.site;
  recorder_.record(0, std::move(op));
  if (what.compute < 0 || casts) return;
  Op cast;
  cast.def = &ops::cast;
  cast.reads = {what.master};
  cast.writes = {what.compute};
  cast.attrs.set("dtype", std::string(dtype_name(state_.plan.param_dtype)));
  cast.phase = Phase::step;
  cast.unit = unit_name(unit);
  cast.site = optimizer.site;
  recorder_.record(0, std::move(cast));
}

}  // namespace prun
