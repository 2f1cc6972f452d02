// A sharded unit's whole gradient occupies a slot of a pool of inflight + 1, or as many as a unit has parts, until its
// reduce-scatter has read it. All other gradients are views of one flat buffer, so that a bucket is a contiguous range
// and needs no copy.
#include "compile/gradient_buckets.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "ir/ops.h"
#include "ir/split_axes.h"

namespace prun {

GradientBuckets::GradientBuckets(CompileState& state, OpEmitter& emitter, const StepIndex& index)
    : state_(state), emitter_(emitter), index_(index) {
  for (UnitId unit : state.graph.units.ids()) {
    const std::vector<ValueId>& parameters = state.graph.units[unit].parameters;
    for (int i = 0; i < std::ssize(parameters); ++i)
      if (ValueId gradient = state.parameter_grad[parameters[i]]; !gradient.none()) targets_[gradient] = {unit, i};
  }
  // The rounds of a dropless mixture add up their gradients in place.
  for (auto node = state.backward.rbegin(); node != state.backward.rend(); ++node)
    if (node->op == &ops::expert_linear_dw_add && targets_.contains(node->outputs[0]))
      targets_[node->inputs[3]] = targets_.at(node->outputs[0]);
  for (UnitId unit : state.graph.units.ids())
    if (state.graph.units[unit].part_of.none())
      most_parts_ = std::max<int64_t>(most_parts_, std::ranges::count_if(index.parts_of(unit), [&](UnitId part) {
                                        return state.trains(part) && !state.storage[part].keeps_whole_gradient();
                                      }));
  buckets_.resize(state.graph.units.size());
  scattered_.resize(state.graph.units.size());
  reduced_over_.resize(state.graph.units.size());
}

const GradientBuckets::Target* GradientBuckets::target_of(ValueId value) const {
  const auto found = targets_.find(value);
  return found == targets_.end() ? nullptr : &found->second;
}

CallId GradientBuckets::last_backward_of(UnitId unit) const {
  const UnitId owner = state_.graph.units[unit].part_of;
  return index_.first_call(owner.none() ? unit : owner);
}

void GradientBuckets::keep_early(const Target& target, TensorId tensor, const ScheduleStep& step) {
  early_[{last_backward_of(target.unit), step.microbatch}].push_back({target, tensor});
}

void GradientBuckets::take_early(const ScheduleStep& step) {
  for (const auto& [target, tensor] : early_[{step.call, step.microbatch}])
    emitter_.compute(emitter_.op(ops::copy, {tensor}, {this->tensor(target, step)}, step,
                                 state_.program.buffers[state_.program.tensors[tensor].buffer].site, target.unit));
}

void GradientBuckets::open_bucket(UnitId unit, const ScheduleStep& step) {
  const Unit& u = state_.graph.units[unit];
  const HookAction* action = state_.strategies.of(u).reduce_scatter;
  if (!action)
    throw plan_error(fmt::format("the parameters of '{}' are sharded, but no hook reduces their gradients: add "
                                 "prun.reduce_scatter(unit.grads, …) after backward",
                                 u.unit_class),
                     state_.plan.strategies.back().site);
  Bucket& bucket = buckets_[unit];
  bucket.flat = add_tensor(state_.program, emitter_.name_of(u.name + ".grads", step.microbatch), Role::reduce,
                           {state_.master_dtype(), {state_.layouts[unit].padded}}, false, action->site);
  const int pool = emitter_.pool_of("unreduced", Role::reduce, std::max(int64_t{action->inflight} + 1, most_parts_));
  const int slot = emitter_.claim_slot(pool, "the gradient of " + u.name, action->site, [&](int wanted) {
    for (UnitId other : buckets_.ids())
      if (!buckets_[other].reduced && buckets_[other].slot == wanted)
        return "the unreduced gradient of " + state_.unit_name(other);
    return std::string();
  });
  bucket = {bucket.flat, slot, step.microbatch, false};
  emitter_.enter_pool(state_.program.tensors[bucket.flat].buffer, pool, slot);
  zero_gaps(unit, bucket.flat, step, action->site);
}

// Zeros the elements that no gradient covers, because they take part in the reduction.
void GradientBuckets::zero_gaps(UnitId unit, TensorId flat, const ScheduleStep& step, const Site& site) {
  const UnitLayout& layout = state_.layouts[unit];
  const Unit& u = state_.graph.units[unit];
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (size_t i = 0; i < u.parameters.size(); ++i)
    if (!state_.parameter_grad[u.parameters[i]].none())
      pieces.emplace_back(layout.start[i], state_.graph.values[u.parameters[i]].count());
  pieces.emplace_back(layout.padded, 0);
  std::sort(pieces.begin(), pieces.end());
  int64_t next = 0;
  for (auto [start, count] : pieces) {
    if (start > next) {
      Op fill = make_zero(add_view(state_.program, u.name + ".pad", flat, next, {start - next}), step.phase, site);
      fill.unit = u.name;
      emitter_.compute(std::move(fill));
    }
    next = start + count;
  }
}

void GradientBuckets::zero_missing(const ScheduleStep& step) {
  for (UnitId unit : index_.parts_of(state_.unit_of(step))) {
    if (state_.is_frozen(unit)) continue;
    const UnitStorage& storage = state_.storage[unit];
    const std::vector<ValueId>& parameters = state_.graph.units[unit].parameters;
    const bool missing = std::any_of(parameters.begin(), parameters.end(),
                                     [&](ValueId parameter) { return state_.parameter_grad[parameter].none(); });
    if (storage.has_own_sum() || (missing && storage.keeps_whole_gradient()))
      zero_gaps(unit, whole_gradient_of(unit, step), step, state_.plan.optimizer.site);
  }
}

// Returns the flat vector that backward writes the unit's gradients to.
TensorId GradientBuckets::whole_gradient_of(UnitId unit, const ScheduleStep& step) {
  const UnitStorage& storage = state_.storage[unit];
  if (storage.keeps_whole_gradient()) return storage.sharded ? storage.whole_grad : storage.grad;
  if (buckets_[unit].microbatch != step.microbatch) open_bucket(unit, step);
  return buckets_[unit].flat;
}

TensorId GradientBuckets::tensor(const Target& target, const ScheduleStep& step) {
  const ValueId parameter = state_.graph.units[target.unit].parameters[target.parameter];
  return emitter_.parameter_view(target.unit, target.parameter, whole_gradient_of(target.unit, step),
                                 "d " + state_.graph.values[parameter].name);
}

// Throws plan_error if a gradient is incomplete. A schedule with chunks can cause this: it may run the weight half of
// the unit's first call before that of a later call that reads the unit's weights.
void GradientBuckets::require_whole(UnitId unit, const ScheduleStep& step, const HookAction& action) {
  for (ValueId parameter : state_.graph.units[unit].parameters) {
    const ValueId gradient = state_.parameter_grad[parameter];
    if (gradient.none() || !emitter_.tensor_of(gradient, step.microbatch).none()) continue;
    throw plan_error(
        fmt::format(
            "{} of the gradients of '{}' before they are whole: '{}' is also used by a call whose backward comes later",
            action.kind, state_.unit_name(unit), state_.graph.values[parameter].name),
        action.site);
  }
}

// Reduces parameters that are neighbors in the layout together.
void GradientBuckets::sum_partial(const ScheduleStep& step) {
  if (!index_.is_first_call(step)) return;
  for (UnitId unit : index_.parts_of(state_.unit_of(step))) {
    if (state_.is_frozen(unit) || (!index_.is_last(step) && state_.storage[unit].keeps_whole_gradient())) continue;
    const UnitLayout& layout = state_.layouts[unit];
    struct Run {
      int64_t begin, end;
    };
    std::map<std::string, std::vector<Run>> runs;  // by axis
    const std::vector<ValueId>& parameters = state_.graph.units[unit].parameters;
    Site site;
    int64_t before = -1;                            // end of the previous parameter in the layout
    for (size_t i = parameters.size(); i-- > 0;) {  // in the layout's order
      const Value& value = state_.graph.values[parameters[i]];
      const int64_t begin = layout.start[i], end = begin + value.count();
      for (const std::string& axis : value.partial_over) {
        std::vector<Run>& of_axis = runs[axis];
        if (!of_axis.empty() && of_axis.back().end == before && begin - before < kAlignBytes)
          of_axis.back().end = end;
        else
          of_axis.push_back({begin, end});
        site = value.site;
      }
      before = end;
    }
    for (const auto& [axis, of_axis] : runs) {
      for (const Run& run : of_axis) {
        const TensorId part = add_view(state_.program, state_.unit_name(unit) + ".partial",
                                       whole_gradient_of(unit, step), run.begin, {run.end - run.begin});
        Op op = make_all_reduce(part, "sum", axis, step.phase, site);
        op.unit = state_.unit_name(unit);
        emitter_.communicate(axis, std::move(op));
      }
    }
  }
}

void GradientBuckets::reduce(const ScheduleStep& step, int strategy, const HookAction& action) {
  if (action.target == "params")
    throw plan_error("parameters are averaged between steps: unit:every(steps, function() ... end)", action.site);
  const UnitId unit = state_.unit_of(step);
  bool any = false, has_any = false;
  for (UnitId part : index_.parts_of(unit)) {
    if (state_.is_frozen(part)) continue;
    any = reduce_part(step, part, strategy, action) || any;
    has_any = has_any || !state_.graph.units[part].parameters.empty();
  }
  if (!has_any) return;  // it uses other units' parameters only
  // Units of one class may lack small parameters, so that a strategy that keeps those whole issues both reductions.
  if (any || state_.strategies.of(state_.graph.units[unit]).keeps_small_whole) return;
  if (action.kind == "reduce_scatter")
    throw plan_error(
        fmt::format("reduce_scatter needs sharded parameters, those of '{}' are not: place them first with "
                    "unit.params:flat():place {{ {} = \"S(0)\" }}",
                    state_.unit_name(unit), action.axis),
        action.site);
  throw plan_error(fmt::format("all_reduce of sharded gradients: '{}' is placed S(0) on '{}'; use reduce_scatter, and "
                               "all_reduce of unit.grad_shard over another axis",
                               state_.unit_name(unit), state_.storage[unit].axis),
                   action.site);
}

// Returns whether the action applies to this part: sharded or whole.
bool GradientBuckets::reduce_part(const ScheduleStep& step, UnitId unit, int strategy, const HookAction& action) {
  const UnitStorage& storage = state_.storage[unit];
  const std::vector<ValueId>& parameters = state_.graph.units[unit].parameters;
  if (parameters.empty()) return false;
  const bool scatters = action.kind == "reduce_scatter";
  if (SplitAxes(state_.graph.values[parameters.front()].split_axis).has(action.axis))
    scale_split(unit, step, strategy, action);
  else if (scatters && storage.sharded)
    reduce_scatter(step, unit, action);
  else if (!scatters && storage.sharded && (action.target == "grad_shard" || !storage.is_sharded_over(action.axis)))
    all_reduce_shard(step, unit, action);
  else if (!scatters && !storage.sharded)
    all_reduce(step, unit, strategy, action);
  else
    return false;
  return true;
}

void GradientBuckets::reduced_once(UnitId unit, const HookAction& action) {
  std::vector<std::string>& over = reduced_over_[unit];
  if (std::find(over.begin(), over.end(), action.axis) != over.end())
    throw plan_error(
        fmt::format("the gradients of '{}' are reduced over '{}' twice", state_.unit_name(unit), action.axis),
        action.site);
  over.push_back(action.axis);
}

void GradientBuckets::over_wire(const OpDef& def, TensorId from, TensorId to, const HookAction& action,
                                const ScheduleStep& step) {
  emitter_.communicate_over_wire(def, from, to, action, step, state_.unit_of(step));
}

// The axes that shard a unit's parameters scatter its gradient one after the other: the first scatters the whole one,
// each other the pieces of the one before.
void GradientBuckets::reduce_scatter(const ScheduleStep& step, UnitId unit, const HookAction& action) {
  const UnitStorage& storage = state_.storage[unit];
  const std::vector<std::string> axes = storage.axes();
  Scattered& scattered = scattered_[unit];
  const bool accumulated = !storage.whole_grad.none();
  if (accumulated && !index_.is_last(step)) return;
  if (scattered.microbatch != step.microbatch) scattered = {TensorId(), 0, step.microbatch};
  const int done = scattered.axes;
  const auto first_left = axes.begin() + done;
  if (std::find(axes.begin(), first_left, action.axis) != first_left)
    throw plan_error(
        fmt::format("the gradients of '{}' are reduced over '{}' twice", state_.unit_name(unit), action.axis),
        action.site);
  if (first_left == axes.end() || *first_left != action.axis)
    throw plan_error(fmt::format("the parameters of '{}' are sharded over '{}'{}, but their gradients are reduced over "
                                 "'{}'",
                                 state_.unit_name(unit), first_left == axes.end() ? storage.axis : *first_left,
                                 std::ssize(axes) - done > 1 ? " first" : "", action.axis),
                     action.site);
  if ((done > 0) != (action.target == "grad_shard"))
    throw plan_error(done > 0 ? fmt::format("the gradients of '{}' are scattered over '{}' already: what is left to "
                                            "scatter is unit.grad_shard",
                                            state_.unit_name(unit), axes[done - 1])
                              : fmt::format("unit.grad_shard of '{}' has no gradient yet: scatter unit.grads over "
                                            "'{}' first",
                                            state_.unit_name(unit), action.axis),
                     action.site);
  if (done == 0) {
    if (!accumulated && buckets_[unit].microbatch != step.microbatch)
      open_bucket(unit, step);  // a twin that this rank does not read
    require_whole(unit, step, action);
    scattered.piece = accumulated ? storage.whole_grad : buckets_[unit].flat;
    buckets_[unit].reduced = true;
  }
  if (index_.is_last(step)) reduced_once(unit, action);
  ++scattered.axes;
  scatter(step, unit, action);
}
void GradientBuckets::scatter(const ScheduleStep& step, UnitId unit, const HookAction& action) {
  const int ranks = state_.plan.mesh.size(action.axis);
  if (ranks == 1) return;
  const UnitStorage& storage = state_.storage[unit];
  const std::vector<std::string> axes = storage.axes();
  auto& [piece, done, microbatch] = scattered_[unit];
  const TensorId from = piece;
  const auto temporary = [&](const char* name) {
    return add_tensor(state_.program, emitter_.name_of(state_.unit_name(unit) + name, step.microbatch), Role::reduce,
                      {state_.master_dtype(), {state_.program.tensors[from].count() / ranks}}, false, action.site);
  };
  const bool more = std::any_of(axes.begin() + done, axes.end(),
                                [&](const std::string& axis) { return state_.plan.mesh.size(axis) > 1; });
  if (more) {
    piece = temporary(".grad_part");
    return over_wire(ops::reduce_scatter, from, piece, action, step);
  }
  if (index_.is_first(step) || !storage.whole_grad.none())
    return over_wire(ops::reduce_scatter, from, storage.grad, action, step);
  // Shards of later microbatches are added to the first one's.
  const TensorId shard = temporary(".grad_shard");
  over_wire(ops::reduce_scatter, from, shard, action, step);
  emitter_.add_in_place(storage.grad, shard, step, action.site, emitter_.stream(action.stream));
}

void GradientBuckets::all_reduce_shard(const ScheduleStep& step, UnitId unit, const HookAction& action) {
  if (!index_.is_last(step)) return;
  const UnitStorage& storage = state_.storage[unit];
  const std::vector<std::string>& over = reduced_over_[unit];
  if (state_.plan.mesh.size(action.axis) == 1) return reduced_once(unit, action);  // a group of one
  for (const std::string& axis : storage.axes())
    if (std::find(over.begin(), over.end(), axis) == over.end())
      throw plan_error(fmt::format("the gradients of '{}' are all-reduced over '{}' before they are scattered over "
                                   "'{}': call prun.reduce_scatter first",
                                   state_.unit_name(unit), action.axis, axis),
                       action.site);
  reduced_once(unit, action);
  over_wire(ops::all_reduce, storage.grad, storage.grad, action, step);
}

// Parameters that are split over an axis that divides the data (experts) already accumulate the data of all its ranks;
// an average over the axis only needs its division.
void GradientBuckets::scale_split(UnitId unit, const ScheduleStep& step, int strategy, const HookAction& action) {
  const UnitStorage& storage = state_.storage[unit];
  if (!index_.is_last(step)) return;
  // A strategy that keeps small parameters whole reduces those and the sharded ones; these parameters are either.
  const auto [by, first] = scaled_by_.try_emplace({unit, action.axis}, strategy);
  if (!first && by->second == strategy && state_.strategies.of(state_.graph.units[unit]).keeps_small_whole) return;
  reduced_once(unit, action);
  if (action.op != "avg" || state_.plan.mesh.size(action.axis) == 1) return;
  Op op = emitter_.op(ops::scale, {storage.grad}, {storage.grad}, step, action.site);
  op.attrs.set("factor", 1.0 / state_.plan.mesh.size(action.axis));
  op.attrs.set("axis", action.axis);
  emitter_.append(storage.sharded ? emitter_.stream(action.stream) : StreamId(0), std::move(op));
}

void GradientBuckets::all_reduce(const ScheduleStep& step, UnitId unit, int strategy, const HookAction& action) {
  if (!index_.is_last(step)) return;
  const UnitStorage& storage = state_.storage[unit];
  require_whole(unit, step, action);
  reduced_once(unit, action);
  PendingReduce& pending = pending_[strategy];
  if (pending.first >= 0 && (pending.end != storage.bucket_start || pending.action.axis != action.axis))
    flush(strategy, true);  // the unit is no neighbor of the pending range
  if (pending.first < 0) pending.first = storage.bucket_start;
  pending.end = storage.bucket_start + state_.layouts[unit].padded;
  pending.action = action;
  pending.step = step;
  flush(strategy, action.bucket == 0);
}

std::vector<int64_t> GradientBuckets::tensor_ends() const {
  std::vector<int64_t> ends;
  for (UnitId unit : state_.graph.units.ids()) {
    const UnitStorage& storage = state_.storage[unit];
    const UnitLayout& layout = state_.layouts[unit];
    if (storage.sharded || !state_.trains(unit)) continue;
    for (int64_t start : layout.start)
      if (start > 0) ends.push_back(storage.bucket_start + start);
    ends.push_back(storage.bucket_start + layout.padded);
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

// Returns the ends of the last buckets, in elements. Nothing overlaps with the last bucket, so it is as small as the
// first; each bucket before it is at most kTaper times its successor, whose gradients are computed during its
// reduction. Tensors are not cut.
std::set<int64_t> GradientBuckets::last_ends(const PendingReduce& pending, const std::vector<int64_t>& ends) const {
  constexpr int64_t kTaper = 4;
  const int64_t first = pending.action.first / dtype_bytes(state_.master_dtype());
  std::set<int64_t> cuts;
  if (pending.action.bucket == 0 || first == 0 || pending.end != state_.program.tensors[state_.flat_grads].count())
    return cuts;
  int64_t end = pending.end;
  for (int64_t most = first; end - pending.first > most; most *= kTaper) {
    auto cut = std::lower_bound(ends.begin(), ends.end(), end - most);
    if (*cut >= end) cut = std::prev(std::lower_bound(ends.begin(), ends.end(), end));
    if (*cut <= pending.first) break;
    end = *cut;
    cuts.insert(end);
  }
  return cuts;
}

// Issues the full buckets. A bucket ends with the tensor that fills it.
void GradientBuckets::flush(int strategy, bool all) {
  PendingReduce& pending = pending_[strategy];
  if (pending.first < 0) return;
  int64_t size = dtype_bytes(state_.master_dtype());
  const std::vector<int64_t> ends = tensor_ends();
  const std::set<int64_t> cuts = last_ends(pending, ends);
  for (int64_t end : ends) {
    if (end <= pending.first || end > pending.end) continue;
    int64_t cap = pending.buckets == 0 && pending.action.first > 0 ? pending.action.first : pending.action.bucket;
    if (cuts.count(end) > 0 || (cap > 0 && (end - pending.first) * size >= cap)) emit_all_reduce(pending, end);
  }
  if (all && pending.first < pending.end) emit_all_reduce(pending, pending.end);
  if (pending.first == pending.end) pending.first = -1;
}

void GradientBuckets::emit_all_reduce(PendingReduce& pending, int64_t end) {
  TensorId bucket = add_view(state_.program, fmt::format("bucket{}", pending.buckets), state_.flat_grads, pending.first,
                             {end - pending.first});
  over_wire(ops::all_reduce, bucket, bucket, pending.action, pending.step);
  ++pending.buckets;
  pending.first = end;
}

void GradientBuckets::finish() {
  for (auto& [strategy, pending] : pending_) flush(strategy, true);
  for (UnitId unit : state_.graph.units.ids()) {
    if (!state_.trains(unit)) continue;
    const std::vector<std::string>& over = reduced_over_[unit];
    const ClassStrategies& strategies = state_.strategies.of(state_.graph.units[unit]);
    for (int s = 0; s < std::ssize(state_.plan.strategies); ++s) {
      const Strategy& strategy = state_.plan.strategies[s];
      if (strategy.splits == Splits::nothing || strategies.unused.contains(s)) continue;
      for (const std::string& axis : strategy.axes) {
        if (std::find(over.begin(), over.end(), axis) != over.end() || strategies.synchronizes_over(axis)) continue;
        throw plan_error(
            fmt::format(
                "the gradients of '{}' are never reduced over '{}': each rank would train on its own share of the {}",
                state_.unit_name(unit), axis, strategy.splits == Splits::batch ? "batch" : "tokens"),
            strategy.site);
      }
    }
  }
}

}  // namespace prun
