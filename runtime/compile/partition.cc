// Which stage of the pipeline each call belongs to, and tied weights that two ranks need.
//
// Surprising fact: a unit that is called on two ranks (tied embeddings: the first and the last) becomes two units with
// the same initial values, twins. Each rank updates its own with the sum of both gradients, so that they stay equal.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "compile/compile_state.h"

namespace prun {
namespace {

// Calls of classes with several units are layers; what stands before, between and after goes along with them.
std::vector<bool> find_layers(const Graph& graph) {
  std::map<std::string, int> units;
  for (const Unit& unit : graph.units) ++units[unit.unit_class];
  bool any = std::any_of(units.begin(), units.end(), [](const auto& entry) { return entry.second > 1; });
  std::vector<bool> layer;
  for (const Call& call : graph.calls) layer.push_back(!any || units[graph.units[call.unit].unit_class] > 1);
  return layer;
}

// The first layers % stages stages have one layer more.
void split_by_layers(Graph& graph, int stages, const std::vector<bool>& layer, int layers) {
  int seen = 0, least = layers / stages, larger = layers % stages;
  auto stage_of = [&](int number) {
    int boundary = larger * (least + 1);
    return number < boundary ? number / (least + 1) : larger + (number - boundary) / least;
  };
  for (size_t c = 0; c < graph.calls.size(); ++c) {
    graph.calls[c].stage = layer[c] ? stage_of(seen++) : stage_of(std::clamp(seen - 1, 0, layers - 1));
  }
}

// Contiguous runs of calls whose largest work is the smallest possible; every stage has a call.
void split_by_flops(Graph& graph, int stages) {
  size_t calls = graph.calls.size();
  std::vector<double> work(calls, 1);  // a call without products still counts
  for (const Node& node : graph.nodes) {
    std::vector<TensorType> inputs, outputs;
    for (ValueId input : node.inputs) inputs.push_back(graph.values[input].type);
    for (ValueId output : node.outputs) outputs.push_back(graph.values[output].type);
    work[node.call] += op_cost(*node.op, inputs, outputs, node.attrs).flops;
  }
  std::vector<double> before(calls + 1, 0);
  for (size_t c = 0; c < calls; ++c) before[c + 1] = before[c] + work[c];
  // best[s][c]: the largest work of a stage when the first c calls are s stages; last[s][c]: where the last one begins.
  size_t n = static_cast<size_t>(stages);
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
    for (size_t c = last[s][end]; c < end; ++c) graph.calls[c].stage = static_cast<int>(s) - 1;
}

// A twin of `unit` for calls on another rank; returns its number.
int make_twin(Graph& graph, UnitId unit) {
  Unit twin = graph.units[unit];
  twin.name += ".tied";
  twin.twin_of = unit;
  int number = std::ssize(graph.units);
  for (ValueId& parameter : twin.parameters) {
    Value copy = graph.values[parameter];
    copy.unit = number;
    parameter = std::ssize(graph.values);
    graph.values.push_back(std::move(copy));
  }
  graph.units.push_back(std::move(twin));
  return number;
}

void separate_tied_units(const Plan& plan, Graph& graph) {
  std::map<std::pair<int, int>, int> unit_on_rank;  // (unit, rank) -> unit or its twin
  std::vector<int> owner(graph.units.size(), -1);
  for (size_t c = 0; c < graph.calls.size(); ++c) {
    Call& call = graph.calls[c];
    UnitId unit = call.unit, rank = rank_of_stage(plan, call.stage);
    if (owner[unit] < 0) owner[unit] = rank;
    auto [it, fresh] = unit_on_rank.try_emplace({unit, rank}, unit);
    if (fresh && owner[unit] != rank) {
      if (graph.units[unit].parameters.empty()) continue;
      it->second = make_twin(graph, unit);
    }
    if (it->second == unit) continue;
    call.unit = it->second;
    const std::vector<ValueId> from = graph.units[unit].parameters, to = graph.units[it->second].parameters;
    for (Node& node : graph.nodes) {
      if (node.call != static_cast<int>(c)) continue;
      for (ValueId& input : node.inputs) {
        auto at = std::find(from.begin(), from.end(), input);
        if (at != from.end()) input = to[at - from.begin()];
      }
    }
  }
}

}  // namespace

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

void partition(CompileState& state) {
  Graph& graph = state.graph;
  // Numbers that initial values depend on: the same however the model is cut.
  int64_t parameters = 0;
  for (Value& value : graph.values)
    if (value.kind == ValueKind::parameter) value.key = parameters++;
  if (!state.plan.pipeline) return;
  const Pipeline& pipeline = *state.plan.pipeline;
  int stages = pipeline_stages(state.plan);
  std::vector<bool> layer = find_layers(graph);
  int layers = static_cast<int>(std::count(layer.begin(), layer.end(), true));
  int most = pipeline.split_by_flops ? static_cast<int>(graph.calls.size()) : layers;
  if (stages > most)
    throw plan_error(
        fmt::format("{} pipeline rank{}{} make {} stages, and the model has {} {}: a stage needs at least one",
                    pipeline_ranks(state.plan), pipeline_ranks(state.plan) == 1 ? "" : "s",
                    pipeline.chunks > 1 ? fmt::format(" with {} chunks each", pipeline.chunks) : "", stages, most,
                    pipeline.split_by_flops ? "units" : "layers"),
        pipeline.site);
  if (pipeline.split_by_flops)
    split_by_flops(graph, stages);
  else
    split_by_layers(graph, stages, layer, layers);
  separate_tied_units(state.plan, graph);
}

}  // namespace prun
