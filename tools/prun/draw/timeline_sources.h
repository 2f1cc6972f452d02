// Sources of timelines: a trace, a flight recorder, `prun sim`'s prediction, or a plan's schedule alone.
#pragma once
#include <string>
#include <vector>

#include "draw/timeline.h"
#include "exec/recorder.h"
#include "ir/program.h"
#include "simulate/cluster.h"
#include "simulate/simulate.h"

namespace prun::draw {

// Recorded times of one stream's ops.
struct StreamTimes {
  int rank = 0, stream = 0;
  std::vector<OpEvent> events;  // events by step and op; some may be missing
  bool cut = false;             // events before the first one are missing
};

// Builds boxes, arrows and lane names; the program determines the rendezvous and the edges. Calls finish().
Timeline timeline_of(const Job& job, const std::vector<StreamTimes>& times);

// Reads a trace. `first`, `last`: steps to keep, from 0. Throws usage_error if the file is unreadable, damaged, not a
// trace, or has no ops.
Timeline read_trace_file(const std::string& path, int first, int last);

// Returns the simulated step of the first rank of each class of ranks with equal times. The simulation must have kept
// its spans.
Timeline simulated_timeline(const Job& job, const simulate::Simulation& simulation);

// Returns the schedule alone; the times are those of the job's ideal cluster.
Timeline ideal_timeline(const Job& job);

// Returns a cluster for pictures of a plan's schedule, scaled to the job and independent of the machine:
//
//     a rank's forward of one microbatch, whatever its stage                  F
//     its gradients of activations; its gradients of weights                  F each
//     reduce-scatter or gather of as many bytes as the rank has gradients     F / 2
//     optimizer                                                               F / 4
//     message or collective                                                   0.1 of a unit's forward, plus at most as
//                                                                             much again for its bytes
//
// Ops divide these times in proportion to their FLOPs.
inline constexpr double kIdealUnitNs = 1e6;  // F

simulate::Cluster ideal_cluster(const Job& job);

}  // namespace prun::draw
