// The plans of `prun diff` as timelines, stacked on one time axis.
#include <utility>

#include "diff/prediction.h"
#include "draw/program_view.h"
#include "draw/timeline_sources.h"

namespace prun {

draw::Timeline timeline_of_plan(const Job& job, const PredictedStep* step, const std::string& which,
                                const std::string& name) {
  draw::Timeline timeline =
      step == nullptr ? draw::ideal_timeline(job) : draw::simulated_timeline(job, step->simulation);
  timeline.name = which;
  timeline.source = name;
  return timeline;
}

draw::Drawing two_timelines(std::vector<draw::Timeline> timelines, const Job& first, const Job& second) {
  draw::Drawing drawing;
  drawing.one_axis = true;
  const Job* job = &first;
  for (draw::Timeline& timeline : timelines) {
    draw::match(timeline, *job);
    timeline.mesh = job->classes.front().mesh.text();
    timeline.memory = draw::memory_of(timeline, *job);
    job = &second;
  }
  drawing.timelines = std::move(timelines);
  return drawing;
}

}  // namespace prun
