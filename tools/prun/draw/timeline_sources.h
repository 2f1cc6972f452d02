// Where timelines come from: a trace, a flight recorder, `prun sim`'s prediction, or a plan's schedule alone.
#pragma once
#include <string>
#include <vector>

#include "draw/timeline.h"
#include "exec/recorder.h"
#include "ir/program.h"
#include "simulate/cluster.h"
#include "simulate/simulate.h"

namespace prun::draw {

// When the ops of one stream ran.
struct StreamTimes {
  int rank = 0, stream = 0;
  std::vector<OpEvent> events;  // by step and op; some may be missing
};

// Boxes, arrows and names of the lanes: who met whom and which edge led where follow from the program. finish() has
// been called.
Timeline timeline_of(const Job& job, const std::vector<StreamTimes>& times);

// `first`, `last`: steps to keep, from 0. Throws usage_error: the file cannot be read, is damaged, is no trace, or has
// no ops.
Timeline read_trace_file(const std::string& path, int first, int last);

// The step as it was simulated, of the first rank of each class of ranks that move in step there. The simulation kept
// its spans.
Timeline simulated_timeline(const Job& job, const simulate::Simulation& simulation);

// The schedule alone, as the ideal cluster of the job takes it.
Timeline ideal_timeline(const Job& job);

// A cluster for pictures of a plan's schedule, made to its measure: no machine, the same everywhere.
//
// - A rank's forward of one microbatch takes F, whatever its stage has, its gradients of activations F and those of
//   weights F. Ops divide these by their FLOPs.
// - To reduce-scatter or gather as many bytes as the rank has gradients takes F/2, and the optimizer F/4.
// - A message or collective takes a tenth of a unit's forward, and its bytes at most as much again.
inline constexpr double kIdealUnitNs = 1e6;  // F

simulate::Cluster ideal_cluster(const Job& job);

}  // namespace prun::draw
