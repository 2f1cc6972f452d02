// What the seconds of a simulated step go into, op by op: compute by line of Lua, communication that nothing hides by
// collective and axis, waiting by what is waited for. Means over ranks, which sum to the step.
#pragma once
#include <map>
#include <string>

#include "simulate/simulate.h"

namespace prun::simulate {

enum class PartKind : uint8_t {
  compute,  // ops that compute, as long as each takes by itself
  slowed,   // what they take longer beside transfers
  exposed,  // communication while nothing computes
  copy,     // between host and device, and nothing else
  waiting   // nothing runs: the pipeline's bubble, and waiting for ranks that come late
};

struct StepPart {
  PartKind kind = PartKind::compute;
  std::string op;    // its name; of waiting: what is waited for, "" for the end of the step
  std::string axis;  // of communication, and of waiting for it
  std::string site;  // of compute: the line of Lua
  auto operator<=>(const StepPart&) const = default;  // NOLINT(modernize-use-nullptr): of the comparison's 0
};

// `simulation` is of this job and cluster, with its spans (SimulateOptions::keep_spans).
std::map<StepPart, double> step_parts(const Job& job, const Cluster& cluster, const Simulation& simulation);

}  // namespace prun::simulate
