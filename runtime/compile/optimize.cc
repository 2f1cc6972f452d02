// The end of the step: global norm and clip coefficient, then one update of each unit's parameters.
#include <fmt/format.h>

#include "compile/build.h"
#include "compile/step_builder.h"

namespace prun {

void StepBuilder::optimize() {
  int clip = draft_.plan.optimizer.clip > 0 ? clip_coefficient() : -1;
  for (size_t u = 0; u < draft_.graph.units.size(); ++u)
    if (!draft_.graph.units[u].parameters.empty()) update(static_cast<int>(u), clip);
}

// Every element counts once: shards are summed over the axis that shards them, whole gradients are on every rank.
int StepBuilder::clip_coefficient() {
  Site site = draft_.plan.optimizer.site;
  std::map<std::string, std::vector<int>> by_axis;  // "" = whole on every rank
  for (size_t u = 0; u < draft_.states.size(); ++u)
    if (!draft_.graph.units[u].parameters.empty()) by_axis[draft_.states[u].axis].push_back(draft_.states[u].grad);
  auto op = [&](const char* kind, std::vector<int> reads, std::vector<int> writes) {
    Op made;
    made.def = &op_def(kind);
    made.reads = std::move(reads);
    made.writes = std::move(writes);
    made.phase = Phase::step;
    made.site = site;
    return made;
  };
  TensorType scalar{draft_.master_dtype(), {}};
  int total = -1;
  for (const auto& [axis, grads] : by_axis) {
    int sum = compute_tensor(axis.empty() ? "norm2" : "norm2." + axis, scalar, site);
    recorder_.record(0, op("norm2", grads, {sum}));
    if (!axis.empty()) {
      Op reduce = op("all_reduce", {sum}, {sum});
      reduce.axis = axis;
      reduce.attrs.set("op", std::string("sum"));
      reduce.lane = recorder_.stream(gradient_stream());
      recorder_.record(reduce.lane, std::move(reduce));
    }
    if (total < 0) {
      total = sum;
    } else {
      int both = compute_tensor("norm2.all", scalar, site);
      recorder_.record(0, op("add", {total, sum}, {both}));
      total = both;
    }
  }
  int coefficient = compute_tensor("clip", scalar, site), norm = compute_tensor("grad_norm", scalar, site);
  Op clip = op("clip_coefficient", {total}, {coefficient, norm});
  clip.attrs.set("max", draft_.plan.optimizer.clip);
  recorder_.record(0, std::move(clip));
  return coefficient;
}

void StepBuilder::update(int unit, int clip) {
  const Optimizer& optimizer = draft_.plan.optimizer;
  const UnitState& state = draft_.states[static_cast<size_t>(unit)];
  Op op;
  op.def = &op_def(optimizer.kind);
  op.reads = {state.grad, state.master};
  op.writes = {state.master};
  for (int slot : state.optimizer) op.reads.push_back(slot), op.writes.push_back(slot);
  if (clip >= 0) op.reads.push_back(clip);
  if (optimizer.kind == "adamw") {
    op.attrs.set("beta1", optimizer.beta1);
    op.attrs.set("beta2", optimizer.beta2);
    op.attrs.set("eps", optimizer.eps);
  } else {
    op.attrs.set("momentum", optimizer.momentum);
  }
  op.attrs.set("weight_decay", optimizer.weight_decay);
  op.phase = Phase::step;
  op.unit = unit_name(unit);
  op.site = optimizer.site;
  recorder_.record(0, std::move(op));
  if (state.compute < 0) return;
  Op cast;
  cast.def = &op_def("cast");
  cast.reads = {state.master};
  cast.writes = {state.compute};
  cast.attrs.set("dtype", std::string(dtype_name(draft_.plan.param_dtype)));
  cast.phase = Phase::step;
  cast.unit = unit_name(unit);
  cast.site = optimizer.site;
  recorder_.record(0, std::move(cast));
}

}  // namespace prun
