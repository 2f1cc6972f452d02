// Options of `prun sim` and `prun tune` besides a plan and its arguments.
#pragma once
#include <string>

#include "command.h"
#include "predict/predict.h"
#include "predict/search_space.h"

namespace prun {

struct SimSettings {
  std::string cluster;  // path of the YAML file
  ArgumentValues sweep;
  ArgumentValues search;  // arguments of prun tune's search
  int candidates = 1000;  // prun tune: number of estimated candidates
  int steps = 0;          // steps drawn for a cluster with jitter; 0 = 100
  int seed = 0;           // seed of these steps
  bool every_rank = false;
  bool whole = false;        // the simulation does not extrapolate
  bool extrapolate = false;  // extrapolates short schedules, too
};

void declare_cluster(OptionTable& table, SimSettings& settings);     // --cluster
void declare_simulation(OptionTable& table, SimSettings& settings);  // options of `prun sim`
void declare_search(OptionTable& table, SimSettings& settings);      // options of `prun tune`
// Uses this machine's calibration if no cluster is named and the calibration has devices for the ranks, and reports the
// choice on standard error. `required`: throws usage_error without one.
void settle_cluster(SimSettings& settings, bool required, int ranks);
// Throws usage_error for options of `prun sim` that exclude each other.
void check_simulation_options(const SimSettings& settings, const JobSpec& job);
PredictOptions prediction_options(const SimSettings& settings, Wanted wanted);

// prun sim --sweep: simulates every combination of the plan's arguments and prints them, fastest first.
void sweep(const JobSpec& job, const SimSettings& settings, bool json, const simulate::Cluster& cluster);

}  // namespace prun
