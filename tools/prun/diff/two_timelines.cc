#include "diff/two_timelines.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "draw/ideal_timeline.h"
#include "draw/program_view.h"
#include "draw/simulated_timeline.h"
#include "program_json.h"

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
    const draw::ProgramView view = draw::view_of(job_json(*job), timeline.source);
    draw::match(timeline, view);
    timeline.mesh = view.mesh;
    timeline.memory = draw::memory_of(timeline, view);
    job = &second;
  }
  drawing.timelines = std::move(timelines);
  return drawing;
}

}  // namespace prun
