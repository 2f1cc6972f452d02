// When the ops of a job's steps ran, as a flight recorder has it or a schedule of costs says it, and the timeline of
// them: who met whom and which edge led where follow from the program.
#pragma once
#include <vector>

#include "draw/timeline.h"
#include "exec/recorder.h"
#include "ir/program.h"

namespace prun::draw {

struct StreamTimes {
  int rank = 0, stream = 0;
  std::vector<OpEvent> events;  // by step and op; some may be missing
};

// Boxes, arrows and names of the lanes; finish() has been called.
Timeline timeline_of(const Job& job, const std::vector<StreamTimes>& times);

}  // namespace prun::draw
