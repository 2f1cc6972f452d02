// Adafactor's updates: formulas of torch.optim.Adafactor (Shazeer and Stern, Adafactor, 2018).
//
//   factor_means   each unit: means of squared gradients over rows and columns, of the rank's part
//   all_reduce     each vector of means, of all units
//   factor_norms   each unit: averages of means, and the squares of update and parameters
//   all_reduce     each vector of these sums
//   adafactor      each unit: the update
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "compile/factored_state.h"
#include "compile/ir_build.h"
#include "compile/optimizer_step.h"
#include "compile/update_settings.h"
#include "ir/ops.h"

namespace prun {

void OptimizerStep::update_by_factors(const std::vector<UnitId>& ids, TensorId clip) {
  FactoredVectors all_means("means"), all_norms("norms");
  std::vector<FactoredUnit> units;
  units.reserve(ids.size());
  for (const UnitId id : ids) {
    units.push_back(factored_unit(state_, id));
    all_means.append(units.back().means), all_norms.append(units.back().norms);
  }
  std::vector<std::vector<TensorId>> means, norms;  // each unit's parts
  for (FactoredVectors* vectors : {&all_means, &all_norms}) {
    vectors->add([&](const std::string& name, int64_t elements) {
      return emitter_.activation(name, {state_.master_dtype(), {elements}}, state_.plan.optimizer.site);
    });
    for (size_t u = 0; u < ids.size(); ++u)
      (vectors == &all_means ? means : norms).push_back(vectors->parts_of(state_.program, u, state_.unit_name(ids[u])));
  }
  const auto emit = [&](const OpDef& def, size_t u, std::vector<TensorId> reads, std::vector<TensorId> writes) {
    const UnitId id = ids[u];
    const Optimizer& optimizer = state_.optimizer_of(id);
    Op op = make_op(def, std::move(reads), std::move(writes), Phase::step, optimizer.site);
    op.attrs = optimizer.numbers;
    for (const auto& [name, list] : units[u].lists.values()) op.attrs.set(name, std::get<std::vector<int64_t>>(list));
    if (!clip.none()) op.reads.push_back(clip), op.attrs.set("clipped", int64_t{1});
    if (!def.optimizer->prepares) set_update_settings(state_, id, 0, state_.storage[id].shard, op.attrs);
    if (const std::string shards = state_.shard_axis(id); !shards.empty())
      op.attrs.set("axis", shards), op.attrs.set("shard", state_.storage[id].shard);
    op.unit = state_.unit_name(id);
    emitter_.compute(std::move(op));
  };
  const auto reduce = [&](const FactoredVectors& vectors) {
    for (const auto& [axes, vector] : vectors.by_axes())
      for (const std::string& axis : split(axes, ','))
        if (!axis.empty()) sum_over(axis, vector);
  };
  const auto joined = [](std::vector<TensorId> all, const std::vector<TensorId>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  for (size_t u = 0; u < ids.size(); ++u) {
    const UnitStorage& storage = state_.storage[ids[u]];
    emit(ops::factor_means, u, {storage.grad, storage.master}, means[u]);
  }
  reduce(all_means);
  for (size_t u = 0; u < ids.size(); ++u) {
    const UnitStorage& storage = state_.storage[ids[u]];
    emit(ops::factor_norms, u, joined(joined({storage.grad, storage.master}, means[u]), storage.factors),
         joined(storage.factors, norms[u]));
  }
  reduce(all_norms);
  for (size_t u = 0; u < ids.size(); ++u) {
    const UnitStorage& storage = state_.storage[ids[u]];
    emit(ops::adafactor, u, joined(joined({storage.grad, storage.master}, storage.factors), norms[u]),
         {storage.master});
    finish(ids[u], {storage.grad, storage.master, storage.optimizer, storage.compute}, false);
  }
}

}  // namespace prun
