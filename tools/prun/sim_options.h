// What `prun sim` and `prun tune` are asked beside a plan and its arguments.
#pragma once
#include <string>

#include "command.h"
#include "predict/predict.h"
#include "predict/search_space.h"

namespace prun {

struct SimSettings {
  std::string cluster;  // path of the YAML file
  ArgumentValues sweep;
  ArgumentValues search;  // of prun tune
  int candidates = 1000;  // of prun tune: so many are estimated
  int steps = 0;          // of a cluster with jitter: so many are drawn; 0: 100
  int seed = 0;           // of them
  bool every_rank = false;
  bool whole = false;        // extrapolate nothing
  bool extrapolate = false;  // also what is short
};

void declare_cluster(OptionTable& table, SimSettings& settings);     // --cluster
void declare_simulation(OptionTable& table, SimSettings& settings);  // of `prun sim`
void declare_search(OptionTable& table, SimSettings& settings);      // of `prun tune`
// Takes this machine's calibration where no cluster is named; `required`: throws usage_error without one.
void settle_cluster(SimSettings& settings, bool required);
// Of `prun sim`. Throws usage_error for options that do not go together.
void check_simulation_options(const SimSettings& settings, const JobSpec& job);
PredictOptions prediction_options(const SimSettings& settings, Wanted wanted);

// prun sim --sweep: prints every combination of the plan's arguments, the fastest first.
void sweep(const JobSpec& job, const SimSettings& settings, bool json, const simulate::Cluster& cluster);

}  // namespace prun
