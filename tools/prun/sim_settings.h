// What `prun sim` and `prun tune` are asked beside a plan and its arguments.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "definer.h"

namespace prun {

struct Options;

using SweepValues = std::vector<std::pair<std::string, std::vector<std::string>>>;  // argument, values

struct SimSettings {
  std::string cluster;  // path of the YAML file
  SweepValues sweep;
  SweepValues search;     // of prun tune
  int candidates = 1000;  // of prun tune: so many are estimated
  int steps = 0;          // of a cluster with jitter: so many are drawn; 0: 100
  int seed = 0;           // of them
  bool every_rank = false;
  bool whole = false;        // extrapolate nothing
  bool extrapolate = false;  // also what is short
  bool joins_steps = false;  // compiled for devices that run each step as a whole, whatever --device is
};

void define_simulation_options(Definer& define, Commands command, SimSettings& settings);
// Of `prun sim`. Throws usage_error for options that do not go together.
void check_simulation_options(const Options& options);

}  // namespace prun
