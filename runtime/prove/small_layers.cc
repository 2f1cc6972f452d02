// Drops repeated units of a class: a model of 96 equal blocks becomes one of a few.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "compile/compile_state.h"
#include "compile/partition.h"
#include "compile/stage_layout.h"
#include "ir/ops.h"
#include "prove/small_plan.h"

namespace prun {
namespace {

// Returns the number of units to keep of the `count` units of a class.
int kept_units(const Plan& plan, int count) {
  if (plan.pipeline) {
    const int stages = plan.mesh.size(plan.pipeline->axis) * plan.pipeline->chunks;
    const int each = count / stages >= 2 && stages <= 4 ? 2 : 1;
    return std::min(count, stages * each + (count % stages != 0 ? 1 : 0));
  }
  int ahead = 0;
  for (const Strategy& strategy : plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const Hook& hook : unit.hooks)
        for (const HookAction& action : hook.actions) ahead = std::max({ahead, action.prefetch, action.inflight - 1});
  return std::min(count, std::min(ahead, 2) + 2);
}

struct Calls {
  Table<CallId, std::vector<int>> nodes;
  explicit Calls(const Graph& graph) : nodes(graph.calls.size()) {
    for (int n = 0; n < std::ssize(graph.nodes); n++) nodes[graph.nodes[n].call].push_back(n);
  }
};

// Returns whether training treats the values alike, if they are parameters.
bool trained_alike(const Value& a, const Value& b) {
  return a.group == b.group && a.frozen == b.frozen && a.buffer == b.buffer;
}

// Returns whether call `b` performs the computation of `a` with parameters of its own.
bool repeats(const Graph& graph, const Calls& calls, CallId a, CallId b) {
  const auto &first = calls.nodes[a], &second = calls.nodes[b];
  if (first.size() != second.size()) return false;
  for (size_t i = 0; i < first.size(); i++) {
    const Node &x = graph.nodes[first[i]], &y = graph.nodes[second[i]];
    if (x.op != y.op || x.inputs.size() != y.inputs.size() || x.outputs.size() != y.outputs.size()) return false;
    for (size_t o = 0; o < x.outputs.size(); o++)
      if (graph.values[x.outputs[o]].type.shape != graph.values[y.outputs[o]].type.shape) return false;
    for (size_t o = 0; o < x.inputs.size(); o++)
      if (!trained_alike(graph.values[x.inputs[o]], graph.values[y.inputs[o]])) return false;
  }
  return true;
}

// Returns the graph without the dropped calls; results of the calls before them replace theirs.
Graph without(const Graph& graph, const Calls& calls, const Table<CallId, bool>& dropped) {
  Graph made;
  Table<ValueId, ValueId> instead(graph.values.size());
  Table<ValueId, bool> gone(graph.values.size(), false);
  Table<UnitId, UnitId> unit_now(graph.units.size());
  Table<CallId, CallId> call_now(graph.calls.size());
  Table<UnitId, bool> unit_gone(graph.units.size(), false);
  for (ValueId id : graph.values.ids()) instead[id] = id;
  for (CallId call : graph.calls.ids()) {
    if (!dropped[call]) continue;
    unit_gone[graph.calls[call].unit] = true;
    const auto &from = calls.nodes[call], &to = calls.nodes[call - 1];
    for (size_t i = 0; i < from.size(); i++)
      for (size_t o = 0; o < graph.nodes[from[i]].outputs.size(); o++) {
        const ValueId output = graph.nodes[from[i]].outputs[o];
        gone[output] = true;
        instead[output] = instead[graph.nodes[to[i]].outputs[o]];
      }
  }
  for (UnitId id : graph.units.ids()) {
    if (unit_gone[id])
      for (ValueId parameter : graph.units[id].parameters) gone[parameter] = true;
    else
      unit_now[id] = made.units.next(), made.units.push_back(graph.units[id]);
  }
  Table<ValueId, ValueId> value_now(graph.values.size());
  for (ValueId id : graph.values.ids()) {
    if (gone[id]) continue;
    value_now[id] = made.values.next();
    made.values.push_back(graph.values[id]);
    if (UnitId& unit = made.values.back().unit; !unit.none()) unit = unit_now[unit];
  }
  const auto move = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) id = value_now[instead[id]];
  };
  for (Unit& unit : made.units) move(unit.parameters);
  for (CallId call : graph.calls.ids()) {
    if (dropped[call]) continue;
    call_now[call] = made.calls.next();
    made.calls.push_back({.unit = unit_now[graph.calls[call].unit]});
  }
  for (const Node& node : graph.nodes) {
    if (dropped[node.call]) continue;
    Node& copy = made.nodes.emplace_back(node);
    move(copy.inputs);
    move(copy.outputs);
    copy.call = call_now[copy.call];
  }
  made.loss = value_now[instead[graph.loss]];
  made.named = graph.named;
  made.terms = graph.terms;
  for (LossTerm& term : made.terms) {
    std::erase_if(term.values, [&](ValueId value) { return gone[value]; });
    move(term.values);
  }
  return made;
}

// Returns the last calls that repeat the call before them, in classes with more units than needed.
Table<CallId, bool> surplus(const Plan& plan, const Calls& calls) {
  const Graph& graph = plan.graph;
  std::map<std::string, int> more;  // by class: units that may be dropped
  Table<UnitId, int> times(graph.units.size(), 0);
  for (const Unit& unit : graph.units) more[unit.unit_class]++;
  for (auto& [name, count] : more) count -= kept_units(plan, count);
  for (const Call& call : graph.calls) times[call.unit]++;
  Table<CallId, bool> dropped(graph.calls.size(), false);
  for (CallId b = graph.calls.last(); b > 0; b = b - 1) {
    const UnitId unit = graph.calls[b].unit, before = graph.calls[b - 1].unit;
    const std::string& of_class = graph.units[unit].unit_class;
    if (unit == before || of_class != graph.units[before].unit_class || times[unit] != 1 || times[before] != 1 ||
        more[of_class] == 0 || !repeats(graph, calls, b - 1, b))
      continue;
    dropped[b] = true;
    more[of_class]--;
  }
  return dropped;
}

// Shares the layers of a smaller plan as unequally as listed: each one goes to the stage that lacks the most.
std::vector<int> shared_as(const std::vector<int>& listed, int stages, int layers) {
  std::vector<double> lacks;
  double sum = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const size_t like = stages == 1 ? 0 : stage * (listed.size() - 1) / (stages - 1);
    sum += lacks.emplace_back(listed[like]);
  }
  std::vector<int> shared;
  for (double& each : lacks) {
    shared.push_back(each > 0 ? 1 : 0);
    each = each > 0 ? each * layers / sum - 1 : -layers;
  }
  for (int left = layers - std::accumulate(shared.begin(), shared.end(), 0); left > 0; --left) {
    const auto most = std::max_element(lacks.begin(), lacks.end());
    ++shared[most - lacks.begin()];
    *most -= 1;
  }
  return shared;
}

// Returns the stage of a pipeline of `few` stages that is as far along as `stage` is in one of `all`.
int stage_like(int stage, int all, int few) { return stage * (few - 1) / std::max(1, all - 1); }

// Returns the stages of the smaller plan's calls: layers are shared as unequally as in the layout of `real`, and each
// other unit is as far along the pipeline.
std::vector<int> stages_as_laid_out(const Plan& real, const Graph& graph, int stages) {
  const Table<CallId, int> stage_of = stages_of_layout(real, real.graph);
  const int all = pipeline_stages(real);
  const std::vector<bool> layers = find_layers(real.graph);
  std::vector<int> listed(all, 0);
  std::map<std::string, int> place;  // of a unit's first call
  for (const CallId call : real.graph.calls.ids()) {
    listed[stage_of[call]] += layers[call.index()] ? 1 : 0;
    place.try_emplace(real.graph.units[real.graph.calls[call].unit].name, stage_of[call]);
  }
  const std::vector<bool> small_layers = find_layers(graph);
  std::vector<int> shared = shared_as(listed, stages, layers_of(graph));
  std::vector<int> result;
  Table<ValueId, int> made(graph.values.size(), 0);
  Calls calls(graph);
  int stage = 0;
  for (const CallId call : graph.calls.ids()) {
    if (small_layers[call.index()]) {
      while (stage + 1 < stages && shared[stage] == 0) ++stage;
      --shared[stage];
      result.push_back(stage);
    } else {
      result.push_back(stage_like(place.at(graph.units[graph.calls[call].unit].name), all, stages));
    }
    for (const int n : calls.nodes[call])
      for (const ValueId input : graph.nodes[n].inputs) result.back() = std::max(result.back(), made[input]);
    for (const int n : calls.nodes[call])
      for (const ValueId output : graph.nodes[n].outputs) made[output] = result.back();
  }
  return result;
}

// Recomputes the stages of the smaller plan that are as far along the pipeline, where these have such units.
void recompute_like(const Plan& real, Plan& small) {
  Graph placed = small.graph;
  assign_stages(small, placed);
  for (Strategy& strategy : small.strategies)
    for (StrategyUnit& unit : strategy.units) {
      if (unit.recompute_stages.empty()) continue;
      for (int& stage : unit.recompute_stages) stage = stage_like(stage, pipeline_stages(real), pipeline_stages(small));
      std::erase_if(unit.recompute_stages, [&](int stage) { return !has_class(placed, stage, unit.unit_class); });
      unit.recompute = !unit.recompute_stages.empty();
    }
}

}  // namespace

void share_layers(const Plan& real, Plan& small) {
  if (!small.pipeline) return;
  Pipeline& pipeline = *small.pipeline;
  const int stages = pipeline_stages(small);
  if (!pipeline.layout.empty()) pipeline.stage_of_call = stages_as_laid_out(real, small.graph, stages);
  if (!pipeline.stage_layers.empty())
    pipeline.stage_layers = shared_as(pipeline.stage_layers, stages, layers_of(small.graph));
  recompute_like(real, small);
}

void drop_layers(Plan& small, const std::vector<Plan*>& others) {
  const Calls calls(small.graph);
  const Table<CallId, bool> dropped = surplus(small, calls);
  for (Plan* other : others) other->graph = without(other->graph, Calls(other->graph), dropped);
  small.graph = without(small.graph, calls, dropped);
}

}  // namespace prun
