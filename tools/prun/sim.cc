// prun sim PLAN --cluster FILE: runs a plan's program under a virtual clock; starts no rank.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "job/build.h"
#include "job/spent_time.h"
#include "job_options.h"
#include "predict/jitter.h"
#include "predict/predict.h"
#include "predict/simulated_trace.h"
#include "predict/what_fits.h"
#include "sim_options.h"
#include "simulate/simulate.h"
#include "standard_streams.h"
#include "verify/verify.h"

namespace prun {
namespace {

using simulate::ClassResult;
using simulate::Cluster;
using simulate::Simulation;

// Returns "rank 3", or "64 ranks like 0".
std::string ranks_text(const ClassResult& of) {
  return of.ranks == 1 ? fmt::format("rank {}", of.first_rank)
                       : fmt::format("{} ranks like {}", grouped(of.ranks), of.first_rank);
}

// Returns the arena by role, in descending order.
std::vector<std::pair<int64_t, std::string>> roles_of(const ClassResult& of) {
  std::vector<std::pair<int64_t, std::string>> roles;
  for (int r = 0; r < kRoles; ++r)
    if (of.role_bytes[r] > 0) roles.emplace_back(of.role_bytes[r], role_name(static_cast<Role>(r)));
  std::stable_sort(roles.begin(), roles.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return roles;
}

nlohmann::ordered_json as_json(const SimulatedPlan& made, const Cluster& cluster, const StepTimes& times) {
  const Simulation& result = made.result;
  nlohmann::ordered_json classes = nlohmann::ordered_json::array();
  nlohmann::ordered_json peaks = nlohmann::ordered_json::array();
  for (const ClassResult& of : result.classes) {
    nlohmann::ordered_json op_seconds = nlohmann::ordered_json::object();
    for (const auto& [name, seconds] : of.usage.op_seconds) op_seconds[std::string(name)] = seconds;
    peaks.push_back(of.peak_bytes);
    classes.push_back({{"first_rank", of.first_rank},
                       {"ranks", of.ranks},
                       {"peak_bytes", of.peak_bytes},
                       {"idle_s", of.usage.idle},
                       {"limit", limit_text(result, cluster, of)},
                       {"op_s", op_seconds}});
    nlohmann::ordered_json& by_role = classes.back()["peak_roles"] = nlohmann::ordered_json::object();
    for (const auto& [bytes, role] : roles_of(of)) by_role[role] = bytes;
  }
  nlohmann::ordered_json bytes = nlohmann::ordered_json::object();
  for (int level = 0; level <= std::ssize(cluster.network); ++level)
    bytes[link_at(cluster, level).name] = result.sent_bytes[level];
  nlohmann::ordered_json all = {{"step_s", result.step_s},
                                {"tflops_per_device", result.tflops_per_device()},
                                {"mfu", result.mfu()},
                                {"replicated_tflops_per_device", result.replicated_tflops_per_device()},
                                {"exposed_comm_s", result.exposed_comm_s},
                                {"bubble", result.step_s > 0 ? result.bubble_s / result.step_s : 0},
                                {"peak_bytes", peaks},
                                {"fits", simulate::too_large(result).empty()},
                                {"bytes", bytes},
                                {"ranks", result.ranks},
                                {"classes", classes}};
  if (times.steps > 0)
    all["steps"] = {
        {"count", times.steps}, {"median_s", times.median_s}, {"p90_s", times.p90_s}, {"p99_s", times.p99_s}};
  return all;
}

void print(const std::string& plan, const SimulatedPlan& made, const Cluster& cluster, const StepTimes& times) {
  const Simulation& result = made.result;
  fmt::print("{}: simulated for {} ({}) on {}\n\n", plan, counted(result.ranks, "rank"), made.mesh,
             cluster.name.empty() ? cluster.path : cluster.name);
  const double step = result.step_s > 0 ? result.step_s : 1;
  fmt::print("  {:<24} {}\n", "step", human_seconds(result.step_s));
  if (times.steps > 0)
    fmt::print("  {:<24} median {}, p90 {}, p99 {}\n", fmt::format("with jitter, {}", counted(times.steps, "step")),
               human_seconds(times.median_s), human_seconds(times.p90_s), human_seconds(times.p99_s));
  fmt::print("  {:<24} {:.1f} TFLOP/s ({:.1f} % of the peak)\n", "model, per device", result.tflops_per_device(),
             100 * result.mfu());
  if (result.replicated_flops > 0)
    fmt::print("  {:<24} {:.1f} TFLOP/s, which other devices compute, too\n", "replicated, per device",
               result.replicated_tflops_per_device());
  fmt::print("  {:<24} {} ({:.1f} % of the step)\n", "exposed communication", human_seconds(result.exposed_comm_s),
             100 * result.exposed_comm_s / step);
  fmt::print("  {:<24} {} ({:.1f} %)\n", "bubble", human_seconds(result.bubble_s), 100 * result.bubble_s / step);
  for (int level = 0; level <= std::ssize(cluster.network); ++level)
    fmt::print("  {:<24} {} a step and rank\n", fmt::format("over {}", link_at(cluster, level).name),
               human_bytes(static_cast<int64_t>(result.sent_bytes[level] / result.ranks)));
  if (!made.extrapolated.empty()) fmt::print("  {:<24} {}\n", "repeats", made.extrapolated);
  fmt::print("\n");
  for (size_t c = 0; c < result.classes.size() && c < 16; ++c) {
    const ClassResult& of = result.classes[c];
    fmt::print("  {:<24} {:>10} peak, limited by {}\n", ranks_text(of), human_bytes(of.peak_bytes),
               limit_text(result, cluster, of));
    std::vector<std::string> roles;
    for (const auto& [bytes, role] : roles_of(of))
      if (bytes * 100 >= of.peak_bytes) roles.push_back(fmt::format("{} {}", role, human_bytes(bytes)));
    if (!roles.empty()) fmt::print("  {:<24} {:>10} {}\n", "", "", join(roles, ", "));
  }
  if (result.classes.size() > 16)
    fmt::print("  and {} more classes of ranks (--json lists all)\n", result.classes.size() - 16);
}

class Sim final : public PlanCommand {
 public:
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;

 private:
  SimSettings sim_;
};

void Sim::declare(OptionTable& table) {
  declare_plan(table, job_);
  table.group("simulation");
  declare_simulation(table, sim_);
  table.group("ranks and devices");
  option::device(table, job_);
  option::device_options(table, job_);
  option::nnodes(table, job_);
  declare_compilation(table, job_);
  option::checkpoint_every(table, job_);
  table.group("records");
  option::trace(table, job_);
}

void Sim::settle() {
  check_ranks(job_);
  require_plan();
  check_simulation_options(sim_, job_);
  settle_cluster(sim_, true, job_.ranks());
}

int Sim::run() {
  const Cluster cluster = open_cluster(job_, sim_.cluster);
  if (!sim_.sweep.empty()) {
    sweep(job_, sim_, line_.json, cluster);
    return 0;
  }
  const SimulatedPlan made = simulate_plan(
      job_, cluster, prediction_options(sim_, job_.watch.trace.empty() ? Wanted::figures : Wanted::spans));
  if (job_.time_passes && !made.extrapolated.empty()) print_spent_time();
  if (!job_.watch.trace.empty()) write_simulated_trace(job_.watch.trace, *made.job, made.result);
  StepTimes times;
  if (has_jitter(cluster) || sim_.steps > 0) {
    const Job job = made.job ? *made.job : written_out(build_job(job_, made.result.ranks));
    times = sample_steps(job, cluster, sim_.steps > 0 ? sim_.steps : 100, static_cast<uint64_t>(sim_.seed));
  }
  if (line_.json)
    fmt::print("{}\n", as_json(made, cluster, times).dump());
  else
    print(job_.plan, made, cluster, times);
  flush_output();
  if (const std::string why = simulate::too_large(made.result); !why.empty())
    fmt::print(stderr, "prun: it does not fit: {}{}{}\n", why,
               line_.json ? "" : "; " + what_would_fit(job_, cluster),  // takes a few seconds
               made.job ? largest_buffers(made.job->classes[simulate::most_memory(made.result).program]) : "");
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_sim() { return std::make_unique<Sim>(); }

}  // namespace prun
