// Both plans of `prun diff` as timelines below each other, on one axis of time.
#pragma once
#include <string>

#include "diff/prediction.h"
#include "draw/drawing.h"

namespace prun {

// `step`: predicted, or null for unit costs. `which`: "first"; `name`: the plan and its arguments.
draw::Timeline timeline_of_plan(const Job& job, const PredictedStep* step, const std::string& which,
                                const std::string& name);
// With memory by role, as pages have it.
draw::Drawing two_timelines(std::vector<draw::Timeline> timelines, const Job& first, const Job& second);

}  // namespace prun
