// Selects the first gathers of forward in step order, because nothing overlaps with them: their units' first ops would
// wait. Later gathers run ahead of compute anyway, as slots permit.
#include "compile/gathers_ahead.h"

#include <algorithm>

#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Gathers two units ahead, because the first is often an embedding table, whose lookup hides nothing. The updates of
// the other units hide two gathers; more would take longer than the updates.
constexpr size_t kAhead = 2;

}  // namespace

const GatherAhead* GathersAhead::find(const Wanted& wanted) {
  const std::pair<int, int> place{wanted.pool, wanted.slot};
  const GatherAhead* found = nullptr;
  for (size_t i = 0; i < state_.ahead.size(); ++i) {
    const GatherAhead& ahead = state_.ahead[i];
    const bool same = ahead.strategy == wanted.strategy && ahead.action->handle == wanted.action->handle &&
                      ahead.units == wanted.units && state_.averages.empty() && ahead.pool == wanted.pool &&
                      ahead.slot == wanted.slot;
    if (same && !used_[i] && !gone_[i]) {
      used_[i] = true;
      found = &ahead;
    } else if (wanted.pool >= 0 && std::pair(ahead.pool, ahead.slot) == place) {
      gone_[i] = true;
    }
  }
  if (found == nullptr && can_define(wanted)) {
    define(wanted);
    found = &state_.ahead.back();
  }
  claimed_.insert(place);
  if (found != nullptr && found->pool >= 0)
    emitter_.enter_pool(state_.program.tensors[found->full].buffer, found->pool, found->slot);
  return found;
}

bool GathersAhead::can_define(const Wanted& wanted) const {
  const std::string& stream = wanted.action->stream;
  const bool beside = !stream.empty() && stream != "compute",  // the compute stream would hide nothing
      may = wanted.action->keep || wanted.action->prefetch > 0;
  return defines_ && beside && may && wanted.action->source < 0 && wanted.step.phase == Phase::forward &&
         state_.ahead.size() < kAhead && (wanted.pool < 0 || claimed_.count({wanted.pool, wanted.slot}) == 0);
}

void GathersAhead::define(const Wanted& wanted) {
  const std::string& unit = state_.unit_name(state_.unit_of(wanted.step));
  const bool whole = state_.storage[wanted.units.front()].axes().size() == 1;
  GatherAhead ahead{wanted.strategy, wanted.action, wanted.step.call, wanted.units, wanted.pool, wanted.slot, {}, {}};
  ahead.full = add_tensor(state_.program, unit + (whole ? ".full.ahead" : ".part.ahead"), Role::gathered,
                          {state_.plan.param_dtype, {wanted.elements}}, true, wanted.action->site);
  int64_t first = 0;
  for (UnitId part : wanted.units) {
    const int64_t padded = state_.storage[part].shard * state_.plan.mesh.size(wanted.action->axis);
    ahead.parts.push_back(wanted.units.size() == 1 ? ahead.full
                                                   : add_view(state_.program, state_.unit_name(part) + ".full",
                                                              ahead.full, first, {padded}));
    first += padded;
  }
  state_.ahead.push_back(std::move(ahead));
  used_.push_back(true);
  gone_.push_back(false);
}

void GathersAhead::finish() {
  for (size_t i = 0; i < state_.ahead.size(); ++i)
    if (defines_ || gone_[i]) gather(state_.ahead[i]);
}

void GathersAhead::gather(const GatherAhead& ahead) {
  if (ahead.pool >= 0) emitter_.enter_pool(state_.program.tensors[ahead.full].buffer, ahead.pool, ahead.slot);
  const StreamId stream = emitter_.stream(ahead.action->stream);
  const std::vector<Op>& ops = emitter_.ops(stream);
  const size_t before = ops.size();
  const ScheduleStep step{Phase::step, ahead.call, -1};
  for (size_t i = 0; i < ahead.units.size(); ++i)
    emitter_.communicate_over_wire(ops::all_gather, state_.storage[ahead.units[i]].read(), ahead.parts[i],
                                   *ahead.action, step, ahead.units[i]);
  if (!defines_) return;
  for (size_t i = before; i < ops.size(); ++i) copy_to_init(ops[i]);
}

// Copies a gather to init, so that the first step starts like every other. Init computes and communicates on one
// stream, with temporaries of its own.
void GathersAhead::copy_to_init(const Op& op) {
  Program& program = state_.program;
  Op copy = op;
  copy.waits.clear();
  copy.phase = Phase::init;
  for (std::vector<TensorId>* ids : {&copy.reads, &copy.writes})
    for (TensorId& id : *ids) {
      const Tensor& tensor = program.tensors[id];
      if (program.buffers[tensor.buffer].persistent) continue;
      const auto [known, fresh] = init_temporaries_.try_emplace(id);
      if (fresh)
        known->second = add_tensor(program, std::string(tensor.name), Role::workspace, tensor.type(), false, op.site);
      id = known->second;
    }
  program.init().streams[0].ops.push_back(std::move(copy));
}

}  // namespace prun
