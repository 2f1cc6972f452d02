#include "simulate/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "ir/op_cost.h"
#include "ir/ops.h"

namespace prun::simulate {
namespace {

constexpr double kRounding = 1e-9;  // relative to a step; sums of times have smaller errors

// Returns the dtype of most GEMM work, whose peak counts.
Dtype compute_dtype(const Program& program) {
  std::map<Dtype, int64_t> work;
  for (const Stream& stream : program.step().streams)
    for (const Op& op : stream.ops)
      if (op.is(ops::linear) || op.is(ops::linear_dx) || op.is(ops::linear_gelu))
        work[program.tensors[op.reads[0]].dtype] += program.tensors[op.reads[0]].count();
  Dtype most = Dtype::f32;
  for (const auto& [dtype, count] : work)
    if (count > work[most]) most = dtype;
  return most;
}

}  // namespace

void add_up_classes(Simulation& simulation) {
  simulation.model_flops = simulation.replicated_flops = simulation.flops = simulation.exposed_comm_s =
      simulation.bubble_s = 0;
  simulation.sent_bytes = {};
  for (const ClassResult& of : simulation.classes) {
    const double share = static_cast<double>(of.ranks) / simulation.ranks;
    for (int level = 0; level < kLevels; ++level) {
      simulation.exposed_comm_s += share * of.usage.exposed[level];
      simulation.sent_bytes[level] += of.ranks * of.usage.sent_bytes[level];
    }
    simulation.bubble_s += share * of.usage.idle;
    simulation.flops += of.ranks * of.usage.flops;
    simulation.model_flops += of.ranks * of.usage.model_flops;
    simulation.replicated_flops += of.ranks * of.usage.replicated_flops;
  }
  const double least = -kRounding * simulation.step_s;
  PRUN_CHECK(simulation.step_s >= 0 && simulation.exposed_comm_s >= least && simulation.bubble_s >= least,
             fmt::format("a step of {} s with {} s of exposed communication and {} s of bubble", simulation.step_s,
                         simulation.exposed_comm_s, simulation.bubble_s));
}

Simulation simulate(const Job& job, const Cluster& cluster, const SimulateOptions& options) {
  const int ranks = job.class_of_rank.size();
  const std::vector<RankPlace> places = place_ranks(cluster, ranks);
  const RankColours colours = colour_ranks(job, cluster, places, options.every_rank);
  std::optional<Clock> clock;
  Simulation result;
  if (!options.only_memory) {
    std::vector<LeftOver> left;  // empty for the first step; the second one begins with the carried-over ops of the
                                 // first
    for (int step = 0; step == 0 || (step == 1 && !left.empty()); ++step) {
      clock.emplace(job, cluster, places, colours, options.keep_spans, options.slowness);
      clock->begin_with(left);
      result.step_s = clock->run();
      left = clock->left_over();
    }
  }
  result.ranks = ranks;
  std::vector<Dtype> dtypes;
  for (const Program& program : job.classes) dtypes.push_back(compute_dtype(program));
  for (int rank = 0; rank < ranks; ++rank)
    result.peak_flops += peak_of(cluster.node_at(places[rank].node).device, dtypes[job.class_of_rank[rank]]);
  for (size_t id = 0; id < colours.first.size(); ++id) {
    ClassResult of;
    of.first_rank = colours.first[id];
    of.ranks = colours.ranks[id];
    of.program = job.class_of_rank[of.first_rank];
    of.peak_bytes = job.classes[of.program].arena_bytes;
    of.role_bytes = std::to_array(job.classes[of.program].role_bytes);
    of.memory_bytes = cluster.node_at(places[of.first_rank].node).device.memory_bytes;
    if (clock) of.usage = clock->usage()[id];
    if (clock && options.keep_spans) of.spans = clock->spans()[id];
    of.usage.model_flops = model_flops(job.classes[of.program]);
    of.usage.replicated_flops = replicated_flops(job.classes[of.program]);
    result.classes.push_back(std::move(of));
  }
  add_up_classes(result);
  return result;
}

const ClassResult& most_memory(const Simulation& simulation) {
  return *std::max_element(
      simulation.classes.begin(), simulation.classes.end(), [](const ClassResult& a, const ClassResult& b) {
        return static_cast<double>(a.peak_bytes) / a.memory_bytes < static_cast<double>(b.peak_bytes) / b.memory_bytes;
      });
}

std::string too_large(const Simulation& simulation) {
  const ClassResult& most = most_memory(simulation);
  const double missing = static_cast<double>(most.peak_bytes) - most.memory_bytes;
  if (missing <= 0) return "";
  return fmt::format("rank {} needs {} of a device's {}: {} too much", most.first_rank, human_bytes(most.peak_bytes),
                     human_bytes(static_cast<int64_t>(most.memory_bytes)), human_bytes(static_cast<int64_t>(missing)));
}

std::string limit_text(const Simulation& simulation, const Cluster& cluster, const ClassResult& of) {
  std::vector<std::pair<double, std::string>> parts;
  const auto bound = [&](Bound which) { return of.usage.computing[static_cast<size_t>(which)]; };
  parts.emplace_back(bound(Bound::compute), "compute");
  parts.emplace_back(bound(Bound::memory), "memory bandwidth");
  parts.emplace_back(bound(Bound::launch), "launch of ops");
  parts.emplace_back(of.usage.copying, "copies from and to the host");
  for (int level = 0; level < kLevels; ++level)
    if (of.usage.exposed[level] > 0) parts.emplace_back(of.usage.exposed[level], link_at(cluster, level).name);
  std::string waiting = "waiting";
  double most = 0;
  for (const auto& [colour, seconds] : of.usage.waited_for)
    if (seconds > most) {
      most = seconds;
      waiting = fmt::format("waiting for rank {}", simulation.classes[colour].first_rank);
    }
  parts.emplace_back(of.usage.idle, waiting);
  return std::max_element(parts.begin(), parts.end())->second;
}

}  // namespace prun::simulate
