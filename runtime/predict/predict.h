// A plan's step on a cluster: simulated as it is, or, where it is long, at a few small sizes from which the rest
// follows.
#pragma once
#include <cstdint>
#include <string>

#include "job/job_spec.h"
#include "simulate/simulate.h"

namespace prun {

struct SimulatedPlan {
  simulate::Simulation result;
  std::string mesh;
  std::string extrapolated;  // "from 3 to 5 stages of 1 to 3 layers, ..", or "" where all of it was simulated
  std::optional<Job> job;    // where all of it was
};

// A cluster file that is not here is looked for beside the program, and among those that come with it: "dgx-a100".
// Throws usage_error with the likely name.
std::string cluster_path(const std::string& given, const std::string& lua_dir);

// Reads it, and lets plans be compiled for its devices.
simulate::Cluster open_cluster(JobSpec& spec, const std::string& given);

enum class Wanted : uint8_t {
  figures,
  largest_peak,  // figures; of peaks the largest, and others may be 0
  spans,         // all of it is simulated
};
struct PredictOptions {
  Wanted wanted = Wanted::figures;
  bool whole = false;        // extrapolates nothing
  bool extrapolate = false;  // extrapolates also a short step
  bool every_rank = false;   // no rank stands for others that are like it
};
SimulatedPlan simulate_plan(const JobSpec& spec, const simulate::Cluster& cluster, const PredictOptions& how = {});

}  // namespace prun
