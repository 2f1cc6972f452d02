// Every element of the norm counts once, on whatever ranks it lies; updates follow unit by unit.
//
// Surprising fact: the norm is also what tells all ranks alike that a gradient is not finite. With --non-finite skip
// the coefficient is then negative, and updates do nothing.
#include <fmt/format.h>

#include <map>

#include "compile/ir_build.h"
#include "compile/norms.h"
#include "compile/optimizer_step.h"
#include "ir/ops.h"

namespace prun {

void OptimizerStep::run() {
  std::vector<UnitId> units;
  for (UnitId unit : state_.graph.units.ids())
    if (state_.trains(unit)) units.push_back(unit);
  const bool skips = state_.program.schedule.most_skips > 0;
  const TensorId clip = state_.plan.optimizer.clip > 0 || skips ? clip_coefficient(units) : TensorId();
  for (UnitId unit : units) {
    const UnitStorage& storage = state_.storage[unit];
    if (storage.offload)
      update_offloaded(unit, clip, unit == units.back());
    else
      update(unit, clip, {storage.grad, storage.master, storage.optimizer, storage.compute});
  }
}

TensorId OptimizerStep::scalar(const std::string& name) {
  return emitter_.activation(name, {state_.master_dtype(), {}}, state_.plan.optimizer.site);
}

// `a` may be none.
TensorId OptimizerStep::add(TensorId a, TensorId b, const char* name) {
  if (a.none()) return b;
  const TensorId both = scalar(name);
  emitter_.compute(make_op(ops::add, {a, b}, {both}, Phase::step, state_.plan.optimizer.site));
  return both;
}

void OptimizerStep::sum_over(const std::string& axis, TensorId tensor) {
  emitter_.communicate(state_.strategies.gradient_stream(),
                       make_all_reduce(tensor, "sum", axis, Phase::step, state_.plan.optimizer.site));
}

TensorId OptimizerStep::norm2(const std::vector<TensorId>& tensors, Attrs attrs, const std::string& name,
                              const std::string& unit) {
  const TensorId sum = scalar(name);
  Op norm = make_op(ops::norm2, tensors, {sum}, Phase::step, state_.plan.optimizer.site);
  norm.attrs = std::move(attrs);
  norm.unit = unit;
  emitter_.compute(std::move(norm));
  return sum;
}

// Shards are summed over the axis that shards them, then all over the axes on which ranks hold different parameters;
// tied twins count on one rank.
TensorId OptimizerStep::clip_coefficient(const std::vector<UnitId>& units) {
  const std::vector<std::string> split = split_axes(state_);
  std::map<std::string, Squares> by_axis;  // "" = whole on every rank
  std::map<std::string, std::vector<TensorId>> mixed;
  for (UnitId id : units) {
    const Unit& unit = state_.graph.units[id];
    const std::string& axis = state_.storage[id].axis;
    if (!unit.twin_of.none()) continue;
    const Squares squares = squares_of(state_, id, state_.storage[id].grad, split);
    Squares& all = by_axis[axis];
    if (squares.starts.empty()) {
      all.tensors.insert(all.tensors.end(), squares.tensors.begin(), squares.tensors.end());
      all.weights.insert(all.weights.end(), squares.weights.begin(), squares.weights.end());
      continue;
    }
    mixed[axis].push_back(norm2(squares.tensors, squares.attrs(axis), "norm2." + unit.name, unit.name));
  }
  TensorId total;
  for (const auto& [axis, squares] : by_axis) {
    std::vector<TensorId> sums = mixed[axis];
    Attrs attrs;
    if (!split.empty()) attrs.set("weights", squares.weights);
    if (!squares.tensors.empty())
      sums.push_back(norm2(squares.tensors, std::move(attrs), axis.empty() ? "norm2" : "norm2." + axis));
    TensorId shards;
    for (TensorId sum : sums) shards = add(shards, sum, "norm2.shards");
    if (!axis.empty()) sum_over(axis, shards);
    total = add(total, shards, "norm2.all");
  }
  if (total.none()) {  // nothing is trained here, or nothing but twins
    total = scalar("norm2");
    emitter_.compute(make_zero(total, Phase::step, state_.plan.optimizer.site));
  }
  for (const std::string& axis : split) sum_over(axis, total);
  if (state_.plan.pipeline) sum_over(state_.plan.pipeline->axis, total);
  if (units.empty()) return {};
  const TensorId coefficient = scalar("clip");
  const TensorId norm = state_.program.step().norm =  // read between steps, as the loss is
      add_tensor(state_.program, "grad_norm", Role::data, {state_.master_dtype(), {}}, true,
                 state_.plan.optimizer.site);
  Op clip = make_op(ops::clip_coefficient, {total}, {coefficient, norm}, Phase::step, state_.plan.optimizer.site);
  clip.attrs.set("max", state_.plan.optimizer.clip);
  if (state_.program.schedule.most_skips > 0) clip.attrs.set("skip", int64_t{1});
  emitter_.compute(std::move(clip));
  return coefficient;
}

// One update of a unit, or of a piece of it. Parameters in the dtype of compute are written by the same op where the
// device has such ops.
void OptimizerStep::update(UnitId unit, TensorId clip, const Updated& what) {
  const Optimizer& optimizer = state_.plan.optimizer;
  const auto& wants = state_.options.fuses;
  const OpDef* const with_cast = optimizer.op->optimizer->with_cast;
  const bool has_compute = !what.compute.none(),
             casts = has_compute && with_cast != nullptr && wants && wants(with_cast->name);
  Op op =
      make_op(casts ? *with_cast : *optimizer.op, {what.grad, what.master}, {what.master}, Phase::step, optimizer.site);
  for (TensorId slot : what.states) op.reads.push_back(slot), op.writes.push_back(slot);
  if (!clip.none()) op.reads.push_back(clip);
  if (casts) op.writes.push_back(what.compute);
  op.attrs = optimizer.numbers;
  op.attrs.set("weight_decay", optimizer.weight_decay);
  op.unit = state_.unit_name(unit);
  emitter_.compute(std::move(op));
  if (!has_compute || casts) return;
  Op cast = make_cast(state_.program, what.master, what.compute, Phase::step, optimizer.site);
  cast.unit = state_.unit_name(unit);
  emitter_.compute(std::move(cast));
}

}  // namespace prun
