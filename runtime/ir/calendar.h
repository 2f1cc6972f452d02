// The order in which the bodies of a program run, the same on all ranks and for everything that runs a program.
#pragma once
#include <algorithm>
#include <string>

#include "ir/program.h"

namespace prun {

// Calls run(body, first, end) for runs first, ..., end - 1 of a body, numbered over the whole job: initial values, then
// as many consecutive steps as possible, then the bodies that are due after the last of them in list order, and so on.
// `steps` returns the number of steps. It may decrease while steps run, but not below the steps that any rank has
// begun; the run of steps then ends early, and the bodies that are due after the last step run there.
template <class Run, class Steps>
void follow_calendar(const Program& program, const Run& run, const Steps& steps) {
  run(kInitBody, 0, 1);
  for (BodyId id = kStepBody + 1; id < program.bodies.next(); ++id)
    if (program.bodies[id].when.every == 0) run(id, 0, program.bodies[id].when.times);
  // A run that resumes at its last step still saves its state, for example a checkpoint for another mesh.
  for (BodyId id = kStepBody + 1; id < program.bodies.next(); ++id)
    if (program.bodies[id].when.last == program.schedule.begin.step && program.schedule.begin.step > 0) run(id, 0, 1);
  for (BodyId id = kStepBody + 1; id < program.bodies.next(); ++id)
    if (program.bodies[id].when.first && program.schedule.begin.step == 0) run(id, 0, program.bodies[id].when.times);
  for (int64_t step = program.schedule.begin.step, end = 0; step < steps(); step = end) {
    end = steps();
    for (BodyId id = kStepBody + 1; id < program.bodies.next(); ++id) {
      const When& when = program.bodies[id].when;
      if (when.every == 0) continue;
      end = std::min(end, (step / when.every + 1) * when.every);
      if (when.last > step) end = std::min(end, when.last);
    }
    run(kStepBody, step, end);
    end = std::min(end, steps());
    // An evaluation may end the run, so that it is computed anew for each body.
    const auto early = [&] { return end == steps() && end < program.schedule.steps; };
    for (BodyId id = kStepBody + 1; id < program.bodies.next(); ++id) {
      const When& when = program.bodies[id].when;
      if (when.every == 0) continue;
      const int64_t runs = ((end + when.every - 1) / when.every + (when.first ? 1 : 0)) * when.times;
      if (when.due_after(end - 1) || (when.last > 0 && early())) run(id, runs - when.times, runs);
    }
  }
}
template <class Run>
void follow_calendar(const Program& program, const Run& run) {
  follow_calendar(program, run, [&] { return program.schedule.steps; });
}

// Returns the moment at which a body runs when the step table is at `step`: "step 7", "evaluation after step 6",
// "initial values".
std::string moment_text(const Program& program, BodyId body, int64_t step);

}  // namespace prun
