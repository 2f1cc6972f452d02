// Builds the report body: every K steps, it writes the norms of each unit's parameters and gradients to --metrics.
// Gradients are reduced but not clipped, because updates apply the clip coefficient as they read.
//
// Ranks reduce sums of squares over the axes that split the unit's parameters. Each stage of a pipeline reports its own
// units.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "compile/edge_builder.h"
#include "compile/ir_build.h"
#include "compile/norms.h"
#include "ir/ops.h"
#include "ir/split_axes.h"

namespace prun {
namespace {

// Returns the axes along which ranks hold different parts of the unit.
std::vector<std::string> axes_of(const CompileState& state, UnitId unit) {
  std::vector<std::string> axes;
  for (const Axis& axis : state.plan.mesh.axes()) {
    bool splits = state.storage[unit].is_sharded_over(axis.name);
    for (ValueId parameter : state.graph.units[unit].parameters)
      splits = splits || SplitAxes(state.graph.values[parameter].split_axis).has(axis.name);
    if (splits && axis.size > 1) axes.push_back(axis.name);
  }
  return axes;
}

class ReportBuilder {
 public:
  explicit ReportBuilder(CompileState& state)
      : state_(state), edges_(state.program, state.program.bodies.back()), site_(state.plan.report->site) {}

  void build() {
    // Units with the same split are adjacent, so that one all-reduce covers them.
    std::map<std::vector<std::string>, std::vector<UnitId>> alike;
    int64_t count = 0, next = 0;
    for (UnitId unit : state_.graph.units.ids()) {
      const Unit& of = state_.graph.units[unit];
      if (!state_.trains(unit) || !of.twin_of.none()) continue;
      alike[axes_of(state_, unit)].push_back(unit);
      count += 2;
    }
    edges_.stream("compute");
    if (count == 0) return;
    Program& program = state_.program;
    const TensorId norms = add_tensor(program, "norms", Role::data, {Dtype::f64, {count}}, false, site_);
    nlohmann::json names = nlohmann::json::array();
    for (const auto& [axes, units] : alike) {
      const int64_t first = next;
      for (UnitId unit : units) {
        const UnitId whole = state_.graph.units[unit].part_of;
        names.push_back(state_.unit_name(!whole.none() ? whole : unit));
        square(unit, parameters(unit), axes, add_view(program, "param_norm", norms, next++, {}));
        square(unit, state_.storage[unit].grad, axes, add_view(program, "grad_norm", norms, next++, {}));
      }
      const TensorId sums = add_view(program, "norms.split", norms, first, {next - first});
      for (const std::string& axis : axes) {
        edges_.communicate("", make_all_reduce(sums, "sum", axis, Phase::step, site_));
      }
    }
    Op report = make_op(ops::report_norms, {norms}, {}, Phase::step, site_);
    report.attrs.set("units", names.dump());
    if (state_.plan.pipeline) report.attrs.set("axis", state_.plan.pipeline->axis);
    edges_.append(0, std::move(report));
  }

 private:
  // Returns the unit's parameters; offloaded ones are loaded to scratch that lives until their norm is computed.
  TensorId parameters(UnitId unit) {
    const UnitStorage& storage = state_.storage[unit];
    if (!storage.master_offloaded) return storage.master;
    const TensorId here = add_tensor(state_.program, state_.unit_name(unit) + ".loaded", Role::workspace,
                                     state_.program.tensors[storage.master].type(), false, site_);
    record_of(unit, make_op(ops::load, {storage.master}, {here}, Phase::step, site_));
    return here;
  }

  void square(UnitId unit, TensorId of, const std::vector<std::string>& axes, TensorId to) {
    // Along its own axes a shard counts in full; along the other axes replicated elements count once.
    std::vector<std::string> others = axes;
    for (const std::string& axis : state_.storage[unit].axes()) std::erase(others, axis);
    const Squares squares = squares_of(state_, unit, of, others);
    Op norm = make_op(ops::norm2, squares.tensors, {to}, Phase::step, site_);
    if (!others.empty()) norm.attrs = squares.attrs(state_.storage[unit].axis);
    record_of(unit, std::move(norm));
  }

  void record_of(UnitId unit, Op op) {
    op.unit = state_.unit_name(unit);
    edges_.append(0, std::move(op));
  }

  CompileState& state_;
  EdgeBuilder edges_;
  Site site_;
};

}  // namespace

void report(CompileState& state) {
  if (!state.plan.report) return;
  state.program.bodies.push_back({"report", {state.plan.report->every}, {}, {}, {}});
  ReportBuilder(state).build();
}

}  // namespace prun
