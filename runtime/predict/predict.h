// A plan's step on a cluster: simulated as it is, or, if it is long, extrapolated from a few small sizes.
#pragma once
#include <cstdint>
#include <string>

#include "job/job_spec.h"
#include "simulate/simulate.h"

namespace prun {

struct SimulatedPlan {
  simulate::Simulation result;
  std::string mesh;
  std::string extrapolated;  // "from 3 to 5 stages of 1 to 3 layers, .."; "" = simulated as it is
  std::optional<Job> job;    // if simulated as it is
};

// Returns the path of a cluster file: as given, otherwise next to the program, otherwise among the installed ones
// ("dgx-a100"). Throws usage_error with the most similar name.
std::string cluster_path(const std::string& given, const std::string& lua_dir);

// Reads the file, and lets plans be compiled for its devices.
simulate::Cluster open_cluster(JobSpec& spec, const std::string& given);

enum class Wanted : uint8_t {
  figures,
  largest_peak,  // all figures; of the peaks only the largest is exact, others may be 0
  spans,         // simulated as it is
};
struct PredictOptions {
  Wanted wanted = Wanted::figures;
  bool whole = false;        // extrapolates nothing
  bool extrapolate = false;  // extrapolates a short step, too
  bool every_rank = false;   // every rank is simulated
};
SimulatedPlan simulate_plan(const JobSpec& spec, const simulate::Cluster& cluster, const PredictOptions& how = {});

}  // namespace prun
