// Assigns calls to the stages of the pipeline, and duplicates tied weights.
//
// Surprising fact: a unit that several ranks call, or whose weights several ranks read (tied embeddings: the first and
// the last), becomes several units with equal initial values, twins. Each rank updates its own with the gradient
// reduced over all twins, so that they remain equal. A twin that another unit reads first becomes a part of that unit.
#include "compile/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/text.h"
#include "compile/compile_state.h"
#include "compile/stage_layout.h"

namespace prun {

// Layers are the calls of classes with several units. Other calls join the stage of the layer before.
std::vector<bool> find_layers(const Graph& graph) {
  std::map<std::string, int> units;
  for (const Unit& unit : graph.units) ++units[unit.unit_class];
  bool any = std::any_of(units.begin(), units.end(), [](const auto& entry) { return entry.second > 1; });
  std::vector<bool> layer;
  for (const Call& call : graph.calls) layer.push_back(!any || units[graph.units[call.unit].unit_class] > 1);
  return layer;
}

// The first layers % stages stages have one layer more.
int equal_share(int number, int layers, int stages) {
  const int least = layers / stages, larger = layers % stages, boundary = larger * (least + 1);
  return number < boundary ? number / (least + 1) : larger + (number - boundary) / least;
}

namespace {

void split_by_layers(Graph& graph, int stages, const std::vector<bool>& layer, int layers) {
  int seen = 0;
  for (size_t c = 0; c < graph.calls.size(); ++c)
    graph.calls[c].stage = equal_share(layer[c] ? seen++ : std::clamp(seen - 1, 0, layers - 1), layers, stages);
}

// `each`: layers of each stage.
void split_as_listed(Graph& graph, const std::vector<int>& each, const std::vector<bool>& layer) {
  int stage = 0, left = each.front();
  for (size_t c = 0; c < graph.calls.size(); ++c) {
    if (layer[c] && left-- == 0) left = each[++stage] - 1;
    graph.calls[c].stage = stage;
  }
}

void check_listed(const Plan& plan, int stages, int layers) {
  const std::vector<int>& each = plan.pipeline->stage_layers;
  const int listed = std::ssize(each), sum = std::accumulate(each.begin(), each.end(), 0);
  if (listed != stages)
    throw plan_error(
        fmt::format("'stages' lists the layers of {}, and {}{} make {}", counted(listed, "stage"),
                    counted(pipeline_ranks(plan), "pipeline rank"),
                    plan.pipeline->chunks > 1 ? fmt::format(" with {} chunks each", plan.pipeline->chunks) : "",
                    stages),
        plan.pipeline->site);
  if (sum != layers)
    throw plan_error(fmt::format("'stages' lists {}, and the model has {}", counted(sum, "layer"), layers),
                     plan.pipeline->site);
}

// Splits calls into contiguous runs with the smallest maximum of FLOPs; every stage has a call.
void split_by_flops(Graph& graph, int stages) {
  size_t calls = graph.calls.size();
  Table<CallId, double> work(calls, 1);  // a call without FLOPs still counts
  for (const Node& node : graph.nodes) {
    std::vector<TensorType> inputs, outputs;
    for (ValueId input : node.inputs) inputs.push_back(graph.values[input].type);
    for (ValueId output : node.outputs) outputs.push_back(graph.values[output].type);
    work[node.call] += op_cost(*node.op, inputs, outputs, node.attrs).flops;
  }
  std::vector<double> before(calls + 1, 0);
  for (size_t c = 0; c < calls; ++c) before[c + 1] = before[c] + work[c];
  // best[s][c]: minimal largest FLOPs per stage if the first c calls form s stages; last[s][c]: first call of the last
  // stage.
  size_t n = stages;
  std::vector<std::vector<double>> best(n + 1, std::vector<double>(calls + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<size_t>> last(n + 1, std::vector<size_t>(calls + 1, 0));
  best[0][0] = 0;
  for (size_t s = 1; s <= n; ++s)
    for (size_t c = s; c <= calls; ++c)
      for (size_t from = s - 1; from < c; ++from) {
        double largest = std::max(best[s - 1][from], before[c] - before[from]);
        if (largest < best[s][c]) best[s][c] = largest, last[s][c] = from;
      }
  for (size_t s = n, end = calls; s > 0; end = last[s][end], --s)
    for (size_t c = last[s][end]; c < end; ++c) graph.calls[c].stage = s - 1;
}

// Adds a twin of `unit` for calls on another rank; returns its id.
UnitId make_twin(Graph& graph, UnitId unit) {
  Unit twin = graph.units[unit];
  twin.name += ".tied";
  twin.twin_of = unit;
  const UnitId number = graph.units.next();
  for (ValueId& parameter : twin.parameters) {
    Value copy = graph.values[parameter];
    copy.unit = number;
    parameter = graph.values.next();
    graph.values.push_back(std::move(copy));
  }
  graph.units.push_back(std::move(twin));
  return number;
}

// Returns the units whose parameters each call reads: its own, and those that lend it a weight.
Table<CallId, std::set<UnitId>> units_read(const Graph& graph) {
  Table<CallId, std::set<UnitId>> units(graph.calls.size());
  for (CallId call : graph.calls.ids()) units[call].insert(graph.calls[call].unit);
  for (const Node& node : graph.nodes)
    for (ValueId input : node.inputs)
      if (graph.values[input].kind == ValueKind::parameter) units[node.call].insert(graph.values[input].unit);
  return units;
}

// Redirects reads of `unit` by the rank's nodes to its twin.
void read_twin(const Plan& plan, Graph& graph, UnitId unit, UnitId twin, int rank) {
  const std::vector<ValueId> from = graph.units[unit].parameters, to = graph.units[twin].parameters;
  for (Node& node : graph.nodes) {
    if (rank_of_stage(plan, graph.calls[node.call].stage) != rank) continue;
    for (ValueId& input : node.inputs) {
      const auto at = std::find(from.begin(), from.end(), input);
      if (at != from.end()) input = to[at - from.begin()];
    }
  }
}

void separate_tied_units(const Plan& plan, Graph& graph) {
  const Table<CallId, std::set<UnitId>> read = units_read(graph);
  std::map<UnitId, int> owner;                       // the rank of a unit's first call
  std::map<std::pair<UnitId, int>, UnitId> twins;    // by unit and rank
  std::map<std::pair<UnitId, int>, CallId> lent_to;  // the first call that reads a twin, if it belongs to another unit
  for (CallId call : graph.calls.ids())
    owner.try_emplace(graph.calls[call].unit, rank_of_stage(plan, graph.calls[call].stage));
  for (CallId call : graph.calls.ids()) {
    const int rank = rank_of_stage(plan, graph.calls[call].stage);
    for (UnitId unit : read[call]) {
      if (owner.at(unit) == rank || graph.units[unit].parameters.empty()) continue;
      const auto [twin, fresh] = twins.try_emplace({unit, rank}, -1);
      if (fresh) {
        twin->second = make_twin(graph, unit);
        read_twin(plan, graph, unit, twin->second, rank);
      }
      if (graph.calls[call].unit == unit)
        graph.calls[call].unit = twin->second;
      else if (fresh)
        lent_to[{unit, rank}] = call;
    }
  }
  for (const auto& [at, call] : lent_to) graph.units[twins.at(at)].part_of = graph.calls[call].unit;
}

// Throws for a recomputation on a stage that has no unit of the class.
void check_recomputed_stages(const Plan& plan, const Graph& graph) {
  const int stages = pipeline_stages(plan);
  for (const Strategy& strategy : plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      for (const int stage : unit.recompute ? unit.recompute_stages : std::vector<int>()) {
        if (stage >= stages)
          throw plan_error(
              fmt::format("recompute: there is no stage {}, {}", stage,
                          stages == 1 ? "the only one is 0" : fmt::format("the stages are 0 to {}", stages - 1)),
              strategy.site);
        if (!has_class(graph, stage, unit.unit_class))
          throw plan_error(fmt::format("recompute: stage {} has no unit of the class '{}'", stage, unit.unit_class),
                           strategy.site);
      }
}

}  // namespace

bool has_class(const Graph& graph, int stage, const std::string& unit_class) {
  return std::any_of(graph.calls.begin(), graph.calls.end(), [&](const Call& call) {
    return call.stage == stage && graph.units[call.unit].unit_class == unit_class;
  });
}

int layers_of(const Graph& graph) {
  const std::vector<bool> layer = find_layers(graph);
  return static_cast<int>(std::count(layer.begin(), layer.end(), true));
}

int pipeline_ranks(const Plan& plan) { return plan.pipeline ? plan.mesh.size(plan.pipeline->axis) : 1; }
int pipeline_stages(const Plan& plan) { return plan.pipeline ? pipeline_ranks(plan) * plan.pipeline->chunks : 1; }
int rank_of_stage(const Plan& plan, int stage) {
  int ranks = pipeline_ranks(plan);
  return plan.pipeline && plan.pipeline->v_placement && stage >= ranks ? 2 * ranks - 1 - stage : stage % ranks;
}

int stage_of_chunk(const Plan& plan, int rank, int chunk) {
  int ranks = pipeline_ranks(plan);
  return plan.pipeline->v_placement && chunk == 1 ? 2 * ranks - 1 - rank : chunk * ranks + rank;
}

void assign_stages(const Plan& plan, Graph& graph) {
  if (!plan.pipeline) return;
  const Pipeline& pipeline = *plan.pipeline;
  int stages = pipeline_stages(plan);
  std::vector<bool> layer = find_layers(graph);
  int layers = std::count(layer.begin(), layer.end(), true);
  int most = pipeline.split_by_flops ? graph.calls.count() : layers;
  if (stages > most && pipeline.layout.empty())
    throw plan_error(
        fmt::format("{} pipeline rank{}{} make {} stages, and the model has {} {}: a stage needs at least one",
                    pipeline_ranks(plan), pipeline_ranks(plan) == 1 ? "" : "s",
                    pipeline.chunks > 1 ? fmt::format(" with {} chunks each", pipeline.chunks) : "", stages, most,
                    pipeline.split_by_flops ? "units" : "layers"),
        pipeline.site);
  if (!pipeline.stage_of_call.empty()) {
    for (const CallId call : graph.calls.ids()) graph.calls[call].stage = pipeline.stage_of_call[call.index()];
  } else if (!pipeline.layout.empty()) {
    const Table<CallId, int> stage_of = stages_of_layout(plan, graph);
    for (const CallId call : graph.calls.ids()) graph.calls[call].stage = stage_of[call];
  } else if (!pipeline.stage_layers.empty()) {
    check_listed(plan, stages, layers);
    split_as_listed(graph, pipeline.stage_layers, layer);
  } else if (pipeline.split_by_flops) {
    split_by_flops(graph, stages);
  } else {
    split_by_layers(graph, stages, layer, layers);
  }
}

void partition(CompileState& state) {
  Graph& graph = state.graph;
  // Initial values depend on these keys, which must not depend on the partition.
  int64_t parameters = 0;
  for (Value& value : graph.values)
    if (value.kind == ValueKind::parameter) value.key = parameters++;
  assign_stages(state.plan, graph);
  check_recomputed_stages(state.plan, graph);
  if (state.plan.pipeline) separate_tied_units(state.plan, graph);
}

}  // namespace prun
