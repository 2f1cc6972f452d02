// A candidate that was compiled, verified and simulated: its step time and the breakdown.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "predict/predict.h"
#include "simulate/cluster.h"

namespace prun {

struct Trial {
  std::map<std::string, std::string> settings;  // settings of the searched arguments
  std::string text;                             // these settings as text: "tp=2 pp=4"
  double estimate_s = 0, estimate_bytes = 0, effort_s = 0;
  std::string wrong;    // reason why there is no such plan; "" = there is one
  std::string misfit;   // missing memory, or ""
  std::string proof;    // result of prun check: "proven: ..", "not proven: .."
  std::string refuted;  // the difference from one rank, or ""
  double step_s = 0, tflops_per_device = 0, mfu = 0, peak_bytes = 0, memory_bytes = 0;
  std::string mesh, limit;                            // limit: largest part of the slowest ranks' step
  std::vector<std::pair<std::string, double>> parts;  // parts of the step; means over ranks, which sum to the step
};

// Fills in the results.
void take_results(Trial& trial, const SimulatedPlan& made, const simulate::Cluster& cluster);

std::string to_text(const Trial& trial);  // serialized for other processes
void from_text(Trial& trial, const std::string& text);

}  // namespace prun
