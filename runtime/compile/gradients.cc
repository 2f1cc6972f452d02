// Gradients: where backward writes them, and how strategies reduce them.
//
// A sharded unit's whole gradient lives in a slot of a pool of inflight + 1 until its reduce-scatter has read it; all
// other units' gradients are views of one flat buffer, so that a bucket is a contiguous range and needs no copy.
#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "compile/step_builder.h"
#include "ir/ops.h"

namespace prun {
namespace {

// The reduce_scatter that a strategy intends for this class of units; null: none.
const HookAction* find_reduce_scatter(const Plan& plan, const std::string& unit_class) {
  for (const Strategy& strategy : plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      if (unit.unit_class == unit_class)
        for (const Hook& hook : unit.hooks)
          for (const HookAction& action : hook.actions)
            if (action.kind == "reduce_scatter") return &action;
  return nullptr;
}

}  // namespace

bool StepBuilder::bucket_slot_busy(int pool, int slot, std::string& holder) {
  for (size_t u = 0; u < buckets_.size(); ++u) {
    const Bucket& bucket = buckets_[u];
    if (bucket.buffer < 0 || bucket.reduced || bucket.pool != pool || bucket.slot != slot) continue;
    holder = "the unreduced gradient of " + unit_name(static_cast<int>(u));
    return true;
  }
  return false;
}

void StepBuilder::open_bucket(UnitId unit, const ScheduleStep& turn) {
  const UnitLayout& layout = state_.layouts[unit];
  const Unit& u = state_.graph.units[unit];
  const HookAction* action = find_reduce_scatter(state_.plan, u.unit_class);
  if (!action) {
    Site site;
    for (const Strategy& strategy : state_.plan.strategies) site = strategy.site;
    throw plan_error(fmt::format("the parameters of '{}' are sharded, but no hook reduces their gradients: add "
                                 "prun.reduce_scatter(unit.grads, …) after backward",
                                 u.unit_class),
                     site);
  }
  Bucket& bucket = buckets_[unit];
  bucket.flat = add_tensor(program_, microbatch_name(u.name + ".grads"), Role::reduce,
                           {state_.master_dtype(), {layout.padded}}, false, action->site);
  bucket.buffer = program_.tensors[bucket.flat].buffer;
  bucket.pool = pool_of("unreduced", Role::reduce, action->inflight + 1);
  bucket.slot = claim_slot(bucket.pool, "the gradient of " + u.name, action->site, &StepBuilder::bucket_slot_busy);
  bucket.microbatch = turn.microbatch;
  bucket.reduced = false;
  enter_pool(bucket.buffer, bucket.pool, bucket.slot);
  zero_gaps(unit, bucket.flat, turn, action->site);
}

// What no gradient covers takes part in the reduction: make it zero.
void StepBuilder::zero_gaps(UnitId unit, TensorId flat, const ScheduleStep& turn, const Site& site) {
  const UnitLayout& layout = state_.layouts[unit];
  const Unit& u = state_.graph.units[unit];
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (size_t i = 0; i < u.parameters.size(); ++i)
    if (state_.parameter_grad[u.parameters[i]] >= 0)
      pieces.emplace_back(layout.start[i], element_count(state_.graph.values[u.parameters[i]].type.shape));
  pieces.emplace_back(layout.padded, 0);
  std::sort(pieces.begin(), pieces.end());
  int64_t next = 0;
  for (auto [start, count] : pieces) {
    if (start > next) {
      Op fill;
      fill.def = &ops::fill;
      fill.writes = {add_view(program_, u.name + ".pad", flat, next, {start - next})};
      fill.attrs.set("value", 0.0);
      fill.phase = turn.phase;
      fill.unit = u.name;
      fill.site = site;
      recorder_.record(0, std::move(fill));
    }
    next = start + count;
  }
}

// A twin's parameter that only the other rank uses has no gradient here, and gaps are scattered with what lies around
// them. Buckets of shards are zeroed when they open.
void StepBuilder::zero_missing_gradients(const ScheduleStep& turn) {
  for (UnitId unit : parts_of(unit_of(turn))) {
    const UnitStorage& storage = state_.storage[unit];
    bool missing = false;
    for (ValueId parameter : state_.graph.units[unit].parameters)
      missing = missing || state_.parameter_grad[parameter] < 0;
    if (storage.whole_grad >= 0 || (missing && !storage.sharded))
      zero_gaps(unit, whole_gradient_of(unit, turn), turn, state_.plan.optimizer.site);
  }
}

// The flat vector that backward writes the unit's gradients into.
TensorId StepBuilder::whole_gradient_of(UnitId unit, const ScheduleStep& turn) {
  const UnitStorage& storage = state_.storage[unit];
  if (!storage.sharded) return storage.grad;
  if (storage.whole_grad >= 0) return storage.whole_grad;
  Bucket& bucket = buckets_[unit];
  if (bucket.buffer < 0 || bucket.microbatch != turn.microbatch) open_bucket(unit, turn);
  return bucket.flat;
}

TensorId StepBuilder::gradient_tensor(UnitId unit, size_t parameter, const ScheduleStep& turn) {
  int of = whole_gradient_of(unit, turn);
  auto [it, fresh] = views_.try_emplace({unit, parameter, of}, -1);
  const Value& value = state_.graph.values[state_.graph.units[unit].parameters[parameter]];
  if (fresh)
    it->second = add_view(program_, "d " + value.name, of, state_.layouts[unit].start[parameter], value.type.shape);
  return it->second;
}

void StepBuilder::require_gradients(UnitId unit, const ScheduleStep& turn, const HookAction& action) {
  for (ValueId parameter : state_.graph.units[unit].parameters) {
    int gradient = state_.parameter_grad[parameter];
    if (gradient < 0 || tensor_of_[turn.microbatch][gradient] >= 0) continue;
    throw plan_error(
        fmt::format(
            "{} of the gradients of '{}' before they are whole: '{}' is also used by a call whose backward comes later",
            action.kind, unit_name(unit), state_.graph.values[parameter].name),
        action.site);
  }
}

// Gradients that are parts of a sum over an axis that divides activations only (norms under sequence parallelism):
// summed when the last microbatch has added its own, or where they leave earlier, each time. Neighbours go together.
void StepBuilder::sum_partial_gradients(const ScheduleStep& turn) {
  if (turn.call != first_call(unit_of(turn))) return;
  for (UnitId unit : parts_of(unit_of(turn))) {
    const UnitStorage& storage = state_.storage[unit];
    const UnitLayout& layout = state_.layouts[unit];
    if (!is_last(turn) && (!storage.sharded || storage.whole_grad >= 0)) continue;
    struct Run {
      int64_t begin, end;
    };
    std::map<std::string, std::vector<Run>> runs;  // by axis
    const std::vector<ValueId>& parameters = state_.graph.units[unit].parameters;
    Site site;
    for (size_t i = parameters.size(); i-- > 0;) {  // the order of the layout
      const Value& value = state_.graph.values[parameters[i]];
      int64_t begin = layout.start[i], end = begin + element_count(value.type.shape);
      for (const std::string& axis : value.partial_over) {
        std::vector<Run>& of_axis = runs[axis];
        bool neighbour = !of_axis.empty() && i + 1 < parameters.size() &&
                         of_axis.back().end ==
                             layout.start[i + 1] + element_count(state_.graph.values[parameters[i + 1]].type.shape);
        if (neighbour && begin - of_axis.back().end < kAlignBytes)
          of_axis.back().end = end;
        else
          of_axis.push_back({begin, end});
        site = value.site;
      }
    }
    for (const auto& [axis, of_axis] : runs) {
      for (const Run& run : of_axis) {
        Op op;
        op.def = &ops::all_reduce;
        op.reads = op.writes = {add_view(program_, unit_name(unit) + ".partial", whole_gradient_of(unit, turn),
                                         run.begin, {run.end - run.begin})};
        op.attrs.set("op", std::string("sum"));
        op.axis = axis;
        op.phase = turn.phase;
        op.unit = unit_name(unit);
        op.site = site;
        communicate_on(axis, std::move(op));
      }
    }
  }
}

// Units of one class may have small parameters or not, so that a strategy that keeps those apart says both.
bool StepBuilder::leaves_small_ones(UnitId unit) const {
  for (const Strategy& strategy : state_.plan.strategies)
    for (const StrategyUnit& one : strategy.units)
      if (one.shard_least > 0 && one.unit_class == state_.graph.units[unit].unit_class) return true;
  return false;
}

// Reduces what backward has made of a unit, in the way in which each part of it is kept: sharded or whole.
void StepBuilder::reduce(const ScheduleStep& turn, int strategy, const HookAction& action) {
  bool scatters = action.kind == "reduce_scatter", any = false;
  if (action.target == "params")
    throw plan_error("parameters are averaged between steps: unit:every(steps, function() ... end)", action.site);
  for (UnitId unit : parts_of(unit_of(turn))) {
    const UnitStorage& storage = state_.storage[unit];
    if (state_.graph.units[unit].parameters.empty()) continue;
    bool of_shard = action.target == "grad_shard";
    bool split_here = state_.graph.values[state_.graph.units[unit].parameters.front()].split_axis == action.axis;
    if (split_here) {
      scale_split_gradients(unit, turn, action);
    } else if (scatters && storage.sharded) {
      reduce_scatter(turn, unit, action);
    } else if (!scatters && storage.sharded && (of_shard || action.axis != storage.axis)) {
      all_reduce_shard(turn, unit, strategy, action);
    } else if (!scatters && !storage.sharded) {
      all_reduce(turn, unit, strategy, action);
    } else {
      continue;
    }
    any = true;
  }
  UnitId unit = unit_of(turn);
  if (any || leaves_small_ones(unit)) return;
  if (scatters)
    throw plan_error(
        fmt::format("reduce_scatter needs sharded parameters, those of '{}' are not: place them first with "
                    "unit.params:flat():place {{ {} = \"S(0)\" }}",
                    unit_name(unit), action.axis),
        action.site);
  throw plan_error(fmt::format("all_reduce of sharded gradients: '{}' is placed S(0) on '{}'; use reduce_scatter, and "
                               "all_reduce of unit.grad_shard over another axis",
                               unit_name(unit), state_.storage[unit].axis),
                   action.site);
}

void StepBuilder::reduced_once(UnitId unit, const HookAction& action) {
  std::vector<std::string>& over = reduced_over_[unit];
  if (std::find(over.begin(), over.end(), action.axis) != over.end())
    throw plan_error(fmt::format("the gradients of '{}' are reduced over '{}' twice", unit_name(unit), action.axis),
                     action.site);
  over.push_back(action.axis);
}

// `from` reduced into `to`, in the dtype that the action wants on the wire.
void StepBuilder::reduce_over_wire(const OpDef& kind, TensorId from, TensorId to, const HookAction& action,
                                   const ScheduleStep& turn) {
  int stream = recorder_.stream(action.stream);
  Dtype dtype = program_.tensors[from].dtype, wire = action.wire.empty() ? dtype : *parse_dtype(action.wire);
  TensorId sent = cast(from, wire, unit_name(unit_of(turn)) + ".wire", action, turn, stream), arrived = to;
  if (wire != dtype) {
    const Shape shape = program_.tensors[to].shape;
    arrived = from == to ? sent
                         : add_tensor(program_, unit_name(unit_of(turn)) + ".arrived", Role::workspace, {wire, shape},
                                      false, action.site);
  }
  Op op = communication(kind, action, turn, sent, arrived);
  communicate_on(action.stream, std::move(op));
  if (arrived != to) cast_into(arrived, to, action, turn, stream);
}

void StepBuilder::reduce_scatter(const ScheduleStep& turn, UnitId unit, const HookAction& action) {
  UnitStorage& storage = state_.storage[unit];
  if (action.axis != storage.axis)
    throw plan_error(
        fmt::format("the parameters of '{}' are sharded over '{}', but their gradients are reduced over '{}'",
                    unit_name(unit), storage.axis, action.axis),
        action.site);
  if (storage.whole_grad >= 0) {
    if (!is_last(turn)) return;
    require_gradients(unit, turn, action);
    reduced_once(unit, action);
    return reduce_over_wire(ops::reduce_scatter, storage.whole_grad, storage.grad, action, turn);
  }
  Bucket& bucket = buckets_[unit];
  if (bucket.reduced && bucket.microbatch == turn.microbatch)
    throw plan_error(fmt::format("the gradients of '{}' are reduced twice", unit_name(unit)), action.site);
  require_gradients(unit, turn, action);
  bucket.reduced = true;
  if (is_last(turn)) reduced_once(unit, action);
  if (is_first(turn)) return reduce_over_wire(ops::reduce_scatter, bucket.flat, storage.grad, action, turn);
  // Shards of later microbatches are added where the first one's lies.
  TensorId piece = add_tensor(program_, microbatch_name(unit_name(unit) + ".grad_shard"), Role::reduce,
                              {state_.master_dtype(), {storage.shard}}, false, action.site);
  reduce_over_wire(ops::reduce_scatter, bucket.flat, piece, action, turn);
  add_in_place(storage.grad, piece, turn, recorder_.stream(action.stream), action.site);
}

void StepBuilder::all_reduce_shard(const ScheduleStep& turn, UnitId unit, int strategy, const HookAction& action) {
  if (!is_last(turn)) return;
  const UnitStorage& storage = state_.storage[unit];
  const std::vector<std::string>& over = reduced_over_[unit];
  if (std::find(over.begin(), over.end(), storage.axis) == over.end())
    throw plan_error(fmt::format("the gradients of '{}' are all-reduced over '{}' before they are scattered over '{}': "
                                 "put the strategy that shards parameters before {} in the list",
                                 unit_name(unit), action.axis, storage.axis, state_.plan.strategies[strategy].name),
                     state_.plan.strategies[strategy].site);
  reduced_once(unit, action);
  reduce_over_wire(ops::all_reduce, storage.grad, storage.grad, action, turn);
}

// Parameters that are split over an axis that divides the data (experts) see the data of all its ranks; what an average
// over the axis would divide by is all there is to do.
void StepBuilder::scale_split_gradients(UnitId unit, const ScheduleStep& turn, const HookAction& action) {
  const UnitStorage& storage = state_.storage[unit];
  if (!is_last(turn)) return;
  reduced_once(unit, action);
  if (action.op != "avg") return;
  Op op = communication(ops::all_reduce, action, turn, storage.grad, storage.grad);
  op.def = &ops::scale;
  op.attrs = {};
  op.attrs.set("factor", 1.0 / state_.plan.mesh.size(action.axis));
  op.axis.clear();
  recorder_.record(storage.sharded ? recorder_.stream(action.stream) : 0, std::move(op));
}

void StepBuilder::all_reduce(const ScheduleStep& turn, UnitId unit, int strategy, const HookAction& action) {
  if (!is_last(turn)) return;
  const UnitStorage& storage = state_.storage[unit];
  require_gradients(unit, turn, action);
  reduced_once(unit, action);
  PendingReduce& pending = pending_[strategy];
  if (pending.first >= 0 && (pending.end != storage.bucket_start || pending.action.axis != action.axis))
    flush(strategy, true);  // not its neighbour
  if (pending.first < 0) pending.first = storage.bucket_start;
  pending.end = storage.bucket_start + state_.layouts[unit].padded;
  pending.action = action;
  pending.turn = turn;
  flush(strategy, action.bucket == 0);
}

// Issues the buckets that are full. Boundaries are those of tensors: a bucket closes with the tensor that fills it.
void StepBuilder::flush(int strategy, bool all) {
  PendingReduce& pending = pending_[strategy];
  if (pending.first < 0) return;
  int64_t size = dtype_bytes(state_.master_dtype());
  std::vector<int64_t> ends;  // of the tensors in (first, end], ascending
  for (size_t u = state_.graph.units.size(); u-- > 0;) {
    const UnitStorage& storage = state_.storage[u];
    if (storage.sharded || !storage.here || state_.layouts[u].padded == 0) continue;
    std::vector<int64_t> starts = state_.layouts[u].start;
    starts.push_back(state_.layouts[u].padded);
    std::sort(starts.begin(), starts.end());
    for (size_t i = 1; i < starts.size(); ++i) ends.push_back(storage.bucket_start + starts[i]);
  }
  std::sort(ends.begin(), ends.end());
  for (int64_t end : ends) {
    if (end <= pending.first || end > pending.end) continue;
    int64_t cap = pending.buckets == 0 && pending.action.first > 0 ? pending.action.first : pending.action.bucket;
    if (cap > 0 && (end - pending.first) * size >= cap) emit_all_reduce(pending, end);
  }
  if (all && pending.first < pending.end) emit_all_reduce(pending, pending.end);
  if (pending.first == pending.end) pending.first = -1;
}

void StepBuilder::emit_all_reduce(PendingReduce& pending, int64_t end) {
  TensorId bucket = add_view(program_, fmt::format("bucket{}", pending.buckets), state_.flat_grads, pending.first,
                             {end - pending.first});
  reduce_over_wire(ops::all_reduce, bucket, bucket, pending.action, pending.turn);
  ++pending.buckets;
  pending.first = end;
}

// A gradient that ends the step partial is a wrong result on more than one rank.
void StepBuilder::require_reduced() {
  for (size_t u = 0; u < state_.graph.units.size(); ++u) {
    if (!state_.storage[u].here || state_.graph.units[u].parameters.empty()) continue;
    const std::vector<std::string>& over = reduced_over_[u];
    for (const Strategy& strategy : state_.plan.strategies) {
      if (strategy.splits == Splits::nothing) continue;
      for (const std::string& axis : strategy.axes) {
        if (synchronizes(state_.plan, state_.graph.units[u].unit_class, axis)) continue;
        if (std::find(over.begin(), over.end(), axis) != over.end()) continue;
        throw plan_error(
            fmt::format(
                "the gradients of '{}' are never reduced over '{}': each rank would train on its own share of the {}",
                unit_name(static_cast<int>(u)), axis, strategy.splits == Splits::batch ? "batch" : "tokens"),
            strategy.site);
      }
    }
  }
}

}  // namespace prun
