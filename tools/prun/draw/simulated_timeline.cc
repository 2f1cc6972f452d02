// The step of a plan as predicted by `prun sim` on a cluster, as a timeline of the first rank of each class of ranks
// with equal times.
#include <cmath>
#include <vector>

#include "draw/timeline_sources.h"

namespace prun::draw {
namespace {

uint64_t nanoseconds_of(double seconds) { return static_cast<uint64_t>(std::llround(seconds * 1e9)); }

}  // namespace

Timeline simulated_timeline(const Job& job, const simulate::Simulation& simulation) {
  std::vector<StreamTimes> times;
  for (const simulate::ClassResult& of : simulation.classes) {
    const size_t first = times.size(), streams = job.program(of.first_rank).step().streams.size();
    for (size_t s = 0; s < streams; ++s) times.push_back({of.first_rank, static_cast<int>(s), {}});
    for (const simulate::OpSpan& span : of.spans) {
      if (span.of_step_before) continue;
      times[first + static_cast<size_t>(span.op.stream.index())].events.push_back(
          {0, static_cast<uint32_t>(span.op.index), nanoseconds_of(span.ready), nanoseconds_of(span.begin),
           nanoseconds_of(span.end)});
    }
  }
  Timeline timeline = timeline_of(job, times);
  timeline.name = "predicted";
  timeline.source = job.classes.front().name;
  return timeline;
}

Timeline ideal_timeline(const Job& job) {
  Timeline timeline = simulated_timeline(job, simulate::simulate(job, ideal_cluster(job), {.keep_spans = true}));
  timeline.name = "schedule";
  timeline.unit_ns = kIdealUnitNs;
  return timeline;
}

}  // namespace prun::draw
