// Global norm, clip coefficient and updates, unit by unit. Each element counts once in the norm, on however many ranks
// it is stored.
//
// Sums of squares are f64 up to the clip coefficient, also in the all-reduce, because squares of f32 gradients beyond
// 1.8e19 overflow.
//
// Surprising fact: the norm makes all ranks detect a non-finite gradient alike. With --non-finite skip the coefficient
// is then negative, and updates do nothing.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "compile/factored_state.h"
#include "compile/ir_build.h"
#include "compile/norms.h"
#include "compile/optimizer_step.h"
#include "compile/update_settings.h"
#include "ir/ops.h"

namespace prun {

void OptimizerStep::run() {
  std::vector<UnitId> units;
  for (UnitId unit : state_.graph.units.ids())
    if (state_.trains(unit)) units.push_back(unit);
  const bool skips = state_.program.schedule.most_skips > 0;
  const TensorId clip = state_.plan.optimizer.clip > 0 || skips ? clip_coefficient(units) : TensorId();
  if (clip.none()) units = by_readiness(units);
  std::vector<UnitId> factored;
  for (UnitId unit : units) {
    const UnitStorage& storage = state_.storage[unit];
    if (storage.offload)
      update_offloaded(unit, clip, unit == units.back());
    else if (state_.optimizer_of(unit).op->optimizer->direction != nullptr)
      update_by_matrix(unit, clip);
    else if (is_factored(state_, unit))
      factored.push_back(unit);
    else
      update(unit, clip, {storage.grad, storage.master, storage.optimizer, storage.compute});
  }
  while (!groups_.empty()) {
    const std::string axes = groups_.begin()->first;  // finish_group removes the group with its key
    finish_group(axes, clip);
  }
  if (!factored.empty()) update_by_factors(factored, clip);
}

// Without a norm to wait for, the first updates overlap with the last reductions. The units whose gradients come last
// are those that the next step reads first: if they are gathered ahead, half of the other updates follow, to overlap
// with the gathers.
std::vector<UnitId> OptimizerStep::by_readiness(const std::vector<UnitId>& units) {
  const std::map<UnitId, Wave> waves = waves_of(units);
  std::vector<UnitId> early, late, order;
  for (const Wave wave : {Wave::early, Wave::last_but_one, Wave::last})
    for (UnitId unit : units)
      if (waves.at(unit) == wave) (wave == Wave::early ? early : late).push_back(unit);
  const auto middle = early.end() - (state_.ahead.empty() ? 0 : std::ssize(early) / 2);
  order.insert(order.end(), early.begin(), middle);
  order.insert(order.end(), late.begin(), late.end());
  order.insert(order.end(), middle, early.end());
  return order;
}

TensorId OptimizerStep::scalar(const std::string& name, Dtype dtype) {
  return emitter_.activation(name, {dtype, {}}, state_.plan.optimizer.site);
}

// `a` may be none.
TensorId OptimizerStep::add(TensorId a, TensorId b, const char* name) {
  if (a.none()) return b;
  const TensorId both = scalar(name);
  emitter_.compute(make_op(ops::add, {a, b}, {both}, Phase::step, state_.plan.optimizer.site));
  return both;
}

// Reduces on the compute stream, which is idle meanwhile: another stream's thread would have to wake for one number.
void OptimizerStep::sum_over(const std::string& axis, TensorId tensor) {
  emitter_.communicate("", make_all_reduce(tensor, "sum", axis, Phase::step, state_.plan.optimizer.site));
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

// Classifies units by when their gradients are complete: after a stream's last reduction, its last but one, or earlier.
std::map<UnitId, OptimizerStep::Wave> OptimizerStep::waves_of(const std::vector<UnitId>& units) {
  std::map<UnitId, Wave> waves;
  for (UnitId unit : units) waves[unit] = Wave::early;
  for (StreamId stream : emitter_.streams()) {
    if (stream == StreamId(0)) continue;
    std::map<UnitId, int> writer;
    std::set<int, std::greater<>> latest;
    for (UnitId unit : units)
      if (const int last = emitter_.last_writer(stream, state_.storage[unit].grad); last >= 0)
        writer[unit] = last, latest.insert(last);
    for (const auto& [unit, last] : writer)
      if (const auto behind = std::distance(latest.begin(), latest.find(last)); behind < 2)
        waves[unit] = std::max(waves[unit], behind == 0 ? Wave::last : Wave::last_but_one);
  }
  return waves;
}

// Reduces shards over their axis, then the total over the axes along which ranks hold different parameters; only one of
// tied twins counts. Norms of gradients that are complete early overlap with the last reductions.
TensorId OptimizerStep::clip_coefficient(const std::vector<UnitId>& units) {
  const std::vector<std::string> split = split_axes(state_);
  struct Term {
    UnitId unit;
    Squares squares;
  };
  std::map<std::string, std::map<Wave, std::vector<Term>>> by_axis;  // "" = whole on every rank
  const std::map<UnitId, Wave> waves = waves_of(units);
  for (UnitId id : units)
    if (state_.graph.units[id].twin_of.none())
      by_axis[state_.shard_axis(id)][waves.at(id)].push_back(
          {id, squares_of(state_, id, state_.storage[id].grad, split)});
  std::map<std::string, TensorId> shards;
  for (const Wave wave : {Wave::early, Wave::last_but_one, Wave::last})
    for (auto& [axis, terms] : by_axis) {
      Squares all;
      TensorId& sum = shards[axis];
      for (const auto& [unit, squares] : terms[wave]) {
        if (!squares.starts.empty()) {
          const std::string& name = state_.unit_name(unit);
          sum = add(sum, norm2(squares.tensors, squares.attrs(axis), "norm2." + name, name), "norm2.shards");
          continue;
        }
        all.tensors.insert(all.tensors.end(), squares.tensors.begin(), squares.tensors.end());
        all.weights.insert(all.weights.end(), squares.weights.begin(), squares.weights.end());
      }
      Attrs attrs;
      if (!split.empty()) attrs.set("weights", all.weights);
      std::string name = axis.empty() ? "norm2" : "norm2." + axis;
      std::ranges::replace(name, ',', '.');
      if (!all.tensors.empty()) sum = add(sum, norm2(all.tensors, std::move(attrs), name), "norm2.shards");
    }
  TensorId total;
  for (const auto& [axis, sum] : shards) {
    for (const std::string& one : prun::split(axis, ','))
      if (std::ranges::find(split, one) == split.end()) sum_over(one, sum);
    total = add(total, sum, "norm2.all");
  }
  if (total.none()) {  // nothing is trained here, or twins only
    total = scalar("norm2");
    emitter_.compute(make_zero(total, Phase::step, state_.plan.optimizer.site));
  }
  for (const std::string& axis : split) sum_over(axis, total);
  if (state_.plan.pipeline) sum_over(state_.plan.pipeline->axis, total);
  if (units.empty()) return {};
  const TensorId coefficient = scalar("clip", state_.master_dtype());
  const TensorId norm = state_.program.step().norm =  // read between steps, like the loss
      add_tensor(state_.program, "grad_norm", Role::data, {Dtype::f64, {}}, true, state_.plan.optimizer.site);
  Op clip = make_op(ops::clip_coefficient, {total}, {coefficient, norm}, Phase::step, state_.plan.optimizer.site);
  clip.attrs.set("max", state_.plan.optimizer.clip);
  if (state_.program.schedule.most_skips > 0) clip.attrs.set("skip", int64_t{1});
  emitter_.compute(std::move(clip));
  return coefficient;
}

// Moves the running average towards the updated parameters.
void OptimizerStep::follow(UnitId unit, TensorId parameters, TensorId average) {
  Op op = make_op(ops::ema, {parameters, average}, {average}, Phase::step, state_.plan.optimizer.site);
  op.attrs.set("decay", state_.plan.optimizer.ema);
  op.unit = state_.unit_name(unit);
  emitter_.compute(std::move(op));
}

// Updates a unit or a piece of it. The same op writes parameters in the compute dtype if the device has such an op;
// otherwise a cast follows.
void OptimizerStep::update(UnitId unit, TensorId clip, const Updated& what) {
  const Optimizer& optimizer = state_.optimizer_of(unit);
  const auto& wants = state_.options.fuses;
  const OpDef* const with_cast = optimizer.op->optimizer->with_cast;
  const bool has_compute = !what.compute.none(),
             casts = has_compute && with_cast != nullptr && wants && wants(with_cast->name);
  Op op =
      make_op(casts ? *with_cast : *optimizer.op, {what.grad, what.master}, {what.master}, Phase::step, optimizer.site);
  const size_t own = what.states.size() - (state_.plan.optimizer.ema > 0 ? 1 : 0);
  for (size_t i = 0; i < own; ++i) op.reads.push_back(what.states[i]), op.writes.push_back(what.states[i]);
  if (!clip.none()) op.reads.push_back(clip);
  if (casts) op.writes.push_back(what.compute);
  op.attrs = optimizer.numbers;
  set_update_settings(state_, unit, what.first, state_.program.tensors[what.master].count(), op.attrs);
  op.unit = state_.unit_name(unit);
  emitter_.compute(std::move(op));
  finish(unit, what, casts);
}

// Emits what follows an update: the running average, and the copy in the compute dtype unless the update `casts`.
void OptimizerStep::finish(UnitId unit, const Updated& what, bool casts) {
  if (state_.plan.optimizer.ema > 0) follow(unit, what.master, what.states.back());
  if (what.compute.none() || casts) return;
  Op cast = make_cast(state_.program, what.master, what.compute, Phase::step, state_.optimizer_of(unit).site);
  cast.unit = state_.unit_name(unit);
  emitter_.compute(std::move(cast));
}

}  // namespace prun
