// What `prun sim` and `prun tune` are asked beside a plan and its arguments.
#pragma once
#include <string>

#include "definer.h"
#include "predict/predict.h"
#include "predict/search_space.h"

namespace prun {

struct Options;

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

void define_simulation_options(Definer& define, Commands command, SimSettings& settings);
// Of `prun sim`. Throws usage_error for options that do not go together.
void check_simulation_options(const Options& options);
PredictOptions prediction_options(const SimSettings& settings, Wanted wanted);

}  // namespace prun
