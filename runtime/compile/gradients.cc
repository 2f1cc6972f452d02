// Gradients: where backward writes them, and how strategies reduce them.
//
// A sharded unit's whole gradient lives in a slot of a pool of inflight + 1 until its reduce-scatter has read it; all
// other units' gradients are views of one flat buffer, so that a bucket is a contiguous range and needs no copy.
#include <fmt/format.h>

#include <algorithm>

#include "compile/build.h"
#include "compile/step_builder.h"

namespace prun {
namespace {

// The reduce_scatter that a strategy intends for this class of units; null: none.
const Intent* find_reduce_scatter(const Plan& plan, const std::string& unit_class) {
  for (const Strategy& strategy : plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      if (unit.unit_class == unit_class)
        for (const Hook& hook : unit.hooks)
          for (const Intent& intent : hook.intents)
            if (intent.kind == "reduce_scatter") return &intent;
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

void StepBuilder::open_bucket(UnitId unit, const Turn& turn) {
  const UnitLayout& layout = draft_.layouts[unit];
  const Unit& u = draft_.graph.units[unit];
  const Intent* intent = find_reduce_scatter(draft_.plan, u.unit_class);
  if (!intent) {
    Site site;
    for (const Strategy& strategy : draft_.plan.strategies) site = strategy.site;
    throw plan_error(fmt::format("the parameters of '{}' are sharded, but no hook reduces their gradients: add "
                                 "prun.reduce_scatter(unit.grads, …) after backward",
                                 u.unit_class),
                     site);
  }
  Bucket& bucket = buckets_[unit];
  bucket.flat = add_tensor(program_, microbatch_name(u.name + ".grads"), Role::reduce,
                           {draft_.master_dtype(), {layout.padded}}, false, intent->site);
  bucket.buffer = program_.tensors[bucket.flat].buffer;
  bucket.pool = pool_of("unreduced", Role::reduce, intent->inflight + 1);
  bucket.slot = claim_slot(bucket.pool, "the gradient of " + u.name, intent->site, &StepBuilder::bucket_slot_busy);
  bucket.microbatch = turn.microbatch;
  bucket.reduced = false;
  enter_pool(bucket.buffer, bucket.pool, bucket.slot);
  zero_gaps(unit, bucket.flat, turn, intent->site);
}

// What no gradient covers takes part in the reduction: make it zero.
void StepBuilder::zero_gaps(UnitId unit, TensorId flat, const Turn& turn, const Site& site) {
  const UnitLayout& layout = draft_.layouts[unit];
  const Unit& u = draft_.graph.units[unit];
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (size_t i = 0; i < u.parameters.size(); ++i)
    if (draft_.parameter_grad[u.parameters[i]] >= 0)
      pieces.emplace_back(layout.start[i], element_count(draft_.graph.values[u.parameters[i]].type.shape));
  pieces.emplace_back(layout.padded, 0);
  std::sort(pieces.begin(), pieces.end());
  int64_t next = 0;
  for (auto [start, count] : pieces) {
    if (start > next) {
      Op fill;
      fill.def = &op_def("fill");
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
void StepBuilder::zero_missing_gradients(const Turn& turn) {
  for (UnitId unit : parts_of(unit_of(turn))) {
    const UnitState& state = draft_.states[unit];
    bool missing = false;
    for (ValueId parameter : draft_.graph.units[unit].parameters)
      missing = missing || draft_.parameter_grad[parameter] < 0;
    if (state.whole_grad >= 0 || (missing && !state.sharded))
      zero_gaps(unit, whole_gradient_of(unit, turn), turn, draft_.plan.optimizer.site);
  }
}

// The flat vector that backward writes the unit's gradients into.
TensorId StepBuilder::whole_gradient_of(UnitId unit, const Turn& turn) {
  const UnitState& state = draft_.states[unit];
  if (!state.sharded) return state.grad;
  if (state.whole_grad >= 0) return state.whole_grad;
  Bucket& bucket = buckets_[unit];
  if (bucket.buffer < 0 || bucket.microbatch != turn.microbatch) open_bucket(unit, turn);
  return bucket.flat;
}

TensorId StepBuilder::gradient_tensor(UnitId unit, size_t parameter, const Turn& turn) {
  int of = whole_gradient_of(unit, turn);
  auto [it, fresh] = views_.try_emplace({unit, parameter, of}, -1);
  const Value& value = draft_.graph.values[draft_.graph.units[unit].parameters[parameter]];
  if (fresh)
    it->second = add_view(program_, "d " + value.name, of, draft_.layouts[unit].start[parameter], value.type.shape);
  return it->second;
}

void StepBuilder::require_gradients(UnitId unit, const Turn& turn, const Intent& intent) {
  for (ValueId parameter : draft_.graph.units[unit].parameters) {
    int gradient = draft_.parameter_grad[parameter];
    if (gradient < 0 || tensor_of_[turn.microbatch][gradient] >= 0) continue;
    throw plan_error(
        fmt::format(
            "{} of the gradients of '{}' before they are whole: '{}' is also used by a call whose backward comes later",
            intent.kind, unit_name(unit), draft_.graph.values[parameter].name),
        intent.site);
  }
}

// Gradients that are parts of a sum over an axis that divides activations only (norms under sequence parallelism):
// summed when the last microbatch has added its own, or where they leave earlier, each time. Neighbours go together.
void StepBuilder::sum_partial_gradients(const Turn& turn) {
  if (turn.call != first_call(unit_of(turn))) return;
  for (UnitId unit : parts_of(unit_of(turn))) {
    const UnitState& state = draft_.states[unit];
    const UnitLayout& layout = draft_.layouts[unit];
    if (!is_last(turn) && (!state.sharded || state.whole_grad >= 0)) continue;
    struct Run {
      int64_t begin, end;
    };
    std::map<std::string, std::vector<Run>> runs;  // by axis
    const std::vector<ValueId>& parameters = draft_.graph.units[unit].parameters;
    Site site;
    for (size_t i = parameters.size(); i-- > 0;) {  // the order of the layout
      const Value& value = draft_.graph.values[parameters[i]];
      int64_t begin = layout.start[i], end = begin + element_count(value.type.shape);
      for (const std::string& axis : value.partial_over) {
        std::vector<Run>& of_axis = runs[axis];
        bool neighbour = !of_axis.empty() && i + 1 < parameters.size() &&
                         of_axis.back().end ==
                             layout.start[i + 1] + element_count(draft_.graph.values[parameters[i + 1]].type.shape);
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
        op.def = &op_def("all_reduce");
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
  for (const Strategy& strategy : draft_.plan.strategies)
    for (const StrategyUnit& one : strategy.units)
      if (one.shard_least > 0 && one.unit_class == draft_.graph.units[unit].unit_class) return true;
  return false;
}

// Reduces what backward has made of a unit, in the way in which each part of it is kept: sharded or whole.
void StepBuilder::reduce(const Turn& turn, int strategy, const Intent& intent) {
  bool scatters = intent.kind == "reduce_scatter", any = false;
  if (intent.target == "params")
    throw plan_error("parameters are averaged between steps: unit:every(steps, function() ... end)", intent.site);
  for (UnitId unit : parts_of(unit_of(turn))) {
    const UnitState& state = draft_.states[unit];
    if (draft_.graph.units[unit].parameters.empty()) continue;
    bool of_shard = intent.target == "grad_shard";
    bool split_here = draft_.graph.values[draft_.graph.units[unit].parameters.front()].split_axis == intent.axis;
    if (split_here) {
      scale_split_gradients(unit, turn, intent);
    } else if (scatters && state.sharded) {
      reduce_scatter(turn, unit, intent);
    } else if (!scatters && state.sharded && (of_shard || intent.axis != state.axis)) {
      all_reduce_shard(turn, unit, strategy, intent);
    } else if (!scatters && !state.sharded) {
      all_reduce(turn, unit, strategy, intent);
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
                    unit_name(unit), intent.axis),
        intent.site);
  throw plan_error(fmt::format("all_reduce of sharded gradients: '{}' is placed S(0) on '{}'; use reduce_scatter, and "
                               "all_reduce of unit.grad_shard over another axis",
                               unit_name(unit), draft_.states[unit].axis),
                   intent.site);
}

void StepBuilder::reduced_once(UnitId unit, const Intent& intent) {
  std::vector<std::string>& over = reduced_over_[unit];
  if (std::find(over.begin(), over.end(), intent.axis) != over.end())
    throw plan_error(fmt::format("the gradients of '{}' are reduced over '{}' twice", unit_name(unit), intent.axis),
                     intent.site);
  over.push_back(intent.axis);
}

// `from` reduced into `to`, in the dtype that the intent wants on the wire.
void StepBuilder::reduce_over_wire(const char* kind, TensorId from, TensorId to, const Intent& intent,
                                   const Turn& turn) {
  int stream = recorder_.stream(intent.stream);
  Dtype dtype = program_.tensors[from].dtype, wire = intent.wire.empty() ? dtype : *parse_dtype(intent.wire);
  TensorId sent = cast(from, wire, unit_name(unit_of(turn)) + ".wire", intent, turn, stream), arrived = to;
  if (wire != dtype) {
    const Shape shape = program_.tensors[to].shape;
    arrived = from == to ? sent
                         : add_tensor(program_, unit_name(unit_of(turn)) + ".arrived", Role::workspace, {wire, shape},
                                      false, intent.site);
  }
  Op op = communication(kind, intent, turn, sent, arrived);
  communicate_on(intent.stream, std::move(op));
  if (arrived != to) cast_into(arrived, to, intent, turn, stream);
}

void StepBuilder::reduce_scatter(const Turn& turn, UnitId unit, const Intent& intent) {
  UnitState& state = draft_.states[unit];
  if (intent.axis != state.axis)
    throw plan_error(
        fmt::format("the parameters of '{}' are sharded over '{}', but their gradients are reduced over '{}'",
                    unit_name(unit), state.axis, intent.axis),
        intent.site);
  if (state.whole_grad >= 0) {
    if (!is_last(turn)) return;
    require_gradients(unit, turn, intent);
    reduced_once(unit, intent);
    return reduce_over_wire("reduce_scatter", state.whole_grad, state.grad, intent, turn);
  }
  Bucket& bucket = buckets_[unit];
  if (bucket.reduced && bucket.microbatch == turn.microbatch)
    throw plan_error(fmt::format("the gradients of '{}' are reduced twice", unit_name(unit)), intent.site);
  require_gradients(unit, turn, intent);
  bucket.reduced = true;
  if (is_last(turn)) reduced_once(unit, intent);
  if (is_first(turn)) return reduce_over_wire("reduce_scatter", bucket.flat, state.grad, intent, turn);
  // Shards of later microbatches are added where the first one's lies.
  TensorId piece = add_tensor(program_, microbatch_name(unit_name(unit) + ".grad_shard"), Role::reduce,
                              {draft_.master_dtype(), {state.shard}}, false, intent.site);
  reduce_over_wire("reduce_scatter", bucket.flat, piece, intent, turn);
  add_in_place(state.grad, piece, turn, recorder_.stream(intent.stream), intent.site);
}

void StepBuilder::all_reduce_shard(const Turn& turn, UnitId unit, int strategy, const Intent& intent) {
  if (!is_last(turn)) return;
  const UnitState& state = draft_.states[unit];
  const std::vector<std::string>& over = reduced_over_[unit];
  if (std::find(over.begin(), over.end(), state.axis) == over.end())
    throw plan_error(fmt::format("the gradients of '{}' are all-reduced over '{}' before they are scattered over '{}': "
                                 "put the strategy that shards parameters before {} in the list",
                                 unit_name(unit), intent.axis, state.axis, draft_.plan.strategies[strategy].name),
                     draft_.plan.strategies[strategy].site);
  reduced_once(unit, intent);
  reduce_over_wire("all_reduce", state.grad, state.grad, intent, turn);
}

// Parameters that are split over an axis that divides the data (experts) see the data of all its ranks; what an average
// over the axis would divide by is all there is to do.
void StepBuilder::scale_split_gradients(UnitId unit, const Turn& turn, const Intent& intent) {
  const UnitState& state = draft_.states[unit];
  if (!is_last(turn)) return;
  reduced_once(unit, intent);
  if (intent.op != "avg") return;
  Op op = communication("all_reduce", intent, turn, state.grad, state.grad);
  op.def = &op_def("scale");
  op.attrs = {};
  op.attrs.set("factor", 1.0 / draft_.plan.mesh.size(intent.axis));
  op.axis.clear();
  recorder_.record(state.sharded ? recorder_.stream(intent.stream) : 0, std::move(op));
}

void StepBuilder::all_reduce(const Turn& turn, UnitId unit, int strategy, const Intent& intent) {
  if (!is_last(turn)) return;
  const UnitState& state = draft_.states[unit];
  require_gradients(unit, turn, intent);
  reduced_once(unit, intent);
  PendingReduce& pending = pending_[strategy];
  if (pending.first >= 0 && (pending.end != state.bucket_start || pending.intent.axis != intent.axis))
    flush(strategy, true);  // not its neighbour
  if (pending.first < 0) pending.first = state.bucket_start;
  pending.end = state.bucket_start + draft_.layouts[unit].padded;
  pending.intent = intent;
  pending.turn = turn;
  flush(strategy, intent.bucket == 0);
}

// Issues the buckets that are full. Boundaries are those of tensors: a bucket closes with the tensor that fills it.
void StepBuilder::flush(int strategy, bool all) {
  PendingReduce& pending = pending_[strategy];
  if (pending.first < 0) return;
  int64_t size = dtype_bytes(draft_.master_dtype());
  std::vector<int64_t> ends;  // of the tensors in (first, end], ascending
  for (size_t u = draft_.graph.units.size(); u-- > 0;) {
    const UnitState& state = draft_.states[u];
    if (state.sharded || !state.here || draft_.layouts[u].padded == 0) continue;
    std::vector<int64_t> starts = draft_.layouts[u].start;
    starts.push_back(draft_.layouts[u].padded);
    std::sort(starts.begin(), starts.end());
    for (size_t i = 1; i < starts.size(); ++i) ends.push_back(state.bucket_start + starts[i]);
  }
  std::sort(ends.begin(), ends.end());
  for (int64_t end : ends) {
    if (end <= pending.first || end > pending.end) continue;
    int64_t cap = pending.buckets == 0 && pending.intent.first > 0 ? pending.intent.first : pending.intent.bucket;
    if (cap > 0 && (end - pending.first) * size >= cap) emit_all_reduce(pending, end);
  }
  if (all && pending.first < pending.end) emit_all_reduce(pending, pending.end);
  if (pending.first == pending.end) pending.first = -1;
}

void StepBuilder::emit_all_reduce(PendingReduce& pending, int64_t end) {
  TensorId bucket = add_view(program_, fmt::format("bucket{}", pending.buckets), draft_.flat_grads, pending.first,
                             {end - pending.first});
  reduce_over_wire("all_reduce", bucket, bucket, pending.intent, pending.turn);
  ++pending.buckets;
  pending.first = end;
}

// A gradient that ends the step partial is a wrong result on more than one rank.
void StepBuilder::require_reduced() {
  for (size_t u = 0; u < draft_.graph.units.size(); ++u) {
    if (!draft_.states[u].here || draft_.graph.units[u].parameters.empty()) continue;
    const std::vector<std::string>& over = reduced_over_[u];
    for (const Strategy& strategy : draft_.plan.strategies) {
      if (strategy.splits == Splits::nothing) continue;
      for (const std::string& axis : strategy.axes) {
        if (synchronizes(draft_.plan, draft_.graph.units[u].unit_class, axis)) continue;
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
