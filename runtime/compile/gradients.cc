// Gradients: where backward writes them, and how strategies reduce them.
//
// A sharded unit's whole gradient lives in a slot of a pool of inflight + 1 until its reduce-scatter has read it; all
// other units' gradients are views of one flat buffer, so that a bucket is a contiguous range and needs no copy.
#include <algorithm>

#include <fmt/format.h>

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

void StepBuilder::open_bucket(int unit, const Turn& turn) {
  const UnitLayout& layout = draft_.layouts[static_cast<size_t>(unit)];
  const Unit& u = draft_.graph.units[static_cast<size_t>(unit)];
  const Intent* intent = find_reduce_scatter(draft_.plan, u.unit_class);
  if (!intent) {
    Site site;
    for (const Strategy& strategy : draft_.plan.strategies) site = strategy.site;
    throw plan_error(fmt::format("the parameters of '{}' are sharded, but no hook reduces their gradients: add prun.reduce_scatter(unit.grads, …) after backward", u.unit_class), site);
  }
  Bucket& bucket = buckets_[static_cast<size_t>(unit)];
  bucket.flat = add_tensor(program_, u.name + ".grads", Role::reduce, {draft_.master_dtype(), {layout.padded}}, false, intent->site);
  bucket.buffer = program_.tensors[static_cast<size_t>(bucket.flat)].buffer;
  bucket.pool = pool_of("unreduced", Role::reduce, intent->inflight + 1);
  bucket.slot = claim_slot(bucket.pool, "the gradient of " + u.name, intent->site, &StepBuilder::bucket_slot_busy);
  Buffer& buffer = program_.buffers[static_cast<size_t>(bucket.buffer)];
  buffer.pool = bucket.pool;
  buffer.slot = bucket.slot;
  Pool& pool = program_.pools[static_cast<size_t>(bucket.pool)];
  pool.slot_bytes = std::max(pool.slot_bytes, buffer.bytes);
  auto previous = occupant_.find({bucket.pool, bucket.slot});
  if (previous != occupant_.end()) recorder_.take_over(bucket.buffer, previous->second);
  occupant_[{bucket.pool, bucket.slot}] = bucket.buffer;

  // Padding takes part in the reduction: make it zero.
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (size_t i = 0; i < u.parameters.size(); ++i)
    pieces.emplace_back(layout.start[i], element_count(draft_.graph.values[static_cast<size_t>(u.parameters[i])].type.shape));
  pieces.emplace_back(layout.padded, 0);
  std::sort(pieces.begin(), pieces.end());
  int64_t next = 0;
  for (auto [start, count] : pieces) {
    if (start > next) {
      Op fill;
      fill.def = &op_def("fill");
      fill.writes = {add_view(program_, u.name + ".pad", bucket.flat, next, {start - next})};
      fill.attrs.set("value", 0.0);
      fill.phase = turn.phase;
      fill.unit = u.name;
      fill.site = intent->site;
      recorder_.record(0, std::move(fill));
    }
    next = start + count;
  }
}

int StepBuilder::gradient_tensor(int unit, size_t parameter, const Turn& turn) {
  const Unit& u = draft_.graph.units[static_cast<size_t>(unit)];
  const UnitState& state = draft_.states[static_cast<size_t>(unit)];
  int of = state.grad;
  if (state.sharded) {
    if (buckets_[static_cast<size_t>(unit)].buffer < 0) open_bucket(unit, turn);
    of = buckets_[static_cast<size_t>(unit)].flat;
  }
  auto [it, fresh] = views_.try_emplace({unit, parameter, of}, -1);
  const Value& value = draft_.graph.values[static_cast<size_t>(u.parameters[parameter])];
  if (fresh) it->second = add_view(program_, "d " + value.name, of, draft_.layouts[static_cast<size_t>(unit)].start[parameter], value.type.shape);
  return it->second;
}

void StepBuilder::require_gradients(int unit, const Intent& intent) {
  for (int parameter : draft_.graph.units[static_cast<size_t>(unit)].parameters) {
    if (gradient_done_[static_cast<size_t>(draft_.parameter_grad[static_cast<size_t>(parameter)])]) continue;
    throw plan_error(fmt::format("{} of the gradients of '{}' before they are whole: '{}' is also used by a call whose backward comes later",
                                 intent.kind, unit_name(unit), draft_.graph.values[static_cast<size_t>(parameter)].name), intent.site);
  }
}

void StepBuilder::reduce_scatter(const Turn& turn, const Intent& intent) {
  int unit = unit_of(turn);
  UnitState& state = draft_.states[static_cast<size_t>(unit)];
  if (!state.sharded)
    throw plan_error(fmt::format("reduce_scatter needs sharded parameters, those of '{}' are not: place them first with "
                                 "unit.params:flat():place {{ {} = \"S(0)\" }}", unit_name(unit), intent.axis), intent.site);
  if (intent.axis != state.axis)
    throw plan_error(fmt::format("the parameters of '{}' are sharded over '{}', but their gradients are reduced over '{}'", unit_name(unit), state.axis, intent.axis), intent.site);
  Bucket& bucket = buckets_[static_cast<size_t>(unit)];
  if (bucket.reduced) throw plan_error(fmt::format("the gradients of '{}' are reduced twice", unit_name(unit)), intent.site);
  require_gradients(unit, intent);
  int stream = recorder_.stream(intent.stream);
  Op op = communication("reduce_scatter", intent, turn, bucket.flat, state.grad);
  op.lane = stream;
  recorder_.record(stream, std::move(op));
  bucket.reduced = true;
  reduced_over_[static_cast<size_t>(unit)].push_back(intent.axis);
}

void StepBuilder::all_reduce(const Turn& turn, int strategy, const Intent& intent) {
  int unit = unit_of(turn);
  const UnitState& state = draft_.states[static_cast<size_t>(unit)];
  if (state.sharded)
    throw plan_error(fmt::format("all_reduce of sharded gradients: '{}' is placed S(0) on '{}'; use reduce_scatter", unit_name(unit), state.axis), intent.site);
  std::vector<std::string>& over = reduced_over_[static_cast<size_t>(unit)];
  if (std::find(over.begin(), over.end(), intent.axis) != over.end())
    throw plan_error(fmt::format("the gradients of '{}' are reduced over '{}' twice", unit_name(unit), intent.axis), intent.site);
  require_gradients(unit, intent);
  over.push_back(intent.axis);
  PendingReduce& pending = pending_[strategy];
  if (pending.first >= 0 && pending.end != state.bucket_start) flush(strategy, true);  // not its neighbour
  if (pending.first < 0) pending.first = state.bucket_start;
  pending.end = state.bucket_start + draft_.layouts[static_cast<size_t>(unit)].padded;
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
    if (state.sharded || draft_.layouts[u].padded == 0) continue;
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
  int bucket = add_view(program_, fmt::format("bucket{}", pending.buckets), draft_.flat_grads, pending.first, {end - pending.first});
  int stream = recorder_.stream(pending.intent.stream);
  Op op = communication("all_reduce", pending.intent, pending.turn, bucket, bucket);
  op.lane = stream;
  recorder_.record(stream, std::move(op));
  ++pending.buckets;
  pending.first = end;
}

// A gradient that ends the step partial is a wrong result on more than one rank.
void StepBuilder::require_reduced() {
  for (size_t u = 0; u < draft_.graph.units.size(); ++u) {
    if (draft_.graph.units[u].parameters.empty()) continue;
    for (const Strategy& strategy : draft_.plan.strategies) {
      const std::vector<std::string>& over = reduced_over_[u];
      if (std::find(over.begin(), over.end(), strategy.axis) != over.end()) continue;
      throw plan_error(fmt::format("the gradients of '{}' are never reduced over '{}': each rank would train on its own share of the batch", unit_name(static_cast<int>(u)), strategy.axis), strategy.site);
    }
  }
}

}  // namespace prun
