// Between-steps bodies satisfy every rule of a step. In addition, all ranks run them at the same steps, and they modify
// nothing that training depends on, except to average weights (drift.cc). They may write a checkpoint's snapshot.
#include "ir/calendar.h"

#include <fmt/format.h>

#include "verify/view.h"

namespace prun::verify {

void calendars_agree(const Job& job, Findings& findings) {
  const auto& first = job.classes.front().bodies;
  for (const Program& program : job.classes) {
    if (program.bodies.size() != first.size())
      findings.add("calendars differ",
                   fmt::format("{} bodies on one rank, {} on another", first.size(), program.bodies.size()), {});
    for (BodyId id : program.bodies.ids()) {
      const Body& mine = program.bodies[id];
      if (id >= first.next() || (mine.name == first[id].name && mine.when == first[id].when)) continue;
      findings.add("calendars differ",
                   fmt::format("{} {} times after every {} steps, and {} {} times after every {}", first[id].name,
                               first[id].when.times, first[id].when.every, mine.name, mine.when.times, mine.when.every),
                   {});
    }
  }
}

void bodies_between_steps_change_nothing(const Job& job, Findings& findings) {
  for (const Program& program : job.classes)
    for (BodyId id = kStepBody + 1; id < program.bodies.next(); ++id) {
      const Body& body = program.bodies[id];
      if (body.when.every == 0) continue;  // not between steps: it prepares the first step
      const BufferId own = body.loss < 0 ? BufferId() : program.tensors[body.loss].buffer;
      bool averages = false;  // true: the body may also change casts of the averaged weights
      for (const Stream& stream : body.streams)
        for (const Op& op : stream.ops) {
          averages = averages || averages_weights(program, op);
          for (const TensorId tensor : op.writes) {
            const BufferId buffer = program.tensors[tensor].buffer;
            const Buffer& written = program.buffers[buffer];
            if (!written.persistent || written.role == Role::snapshot || buffer == own || averages_weights(program, op))
              continue;
            if (written.role == Role::gathered) continue;  // copies of parameters; values.cc checks them
            if (averages && written.role == Role::param) continue;
            findings.add(fmt::format("the {} changes the training", body.name),
                         fmt::format("{} of the {} writes '{}', which persists from step to step", op.def->name,
                                     body.name, written.name),
                         op.site);
          }
        }
    }
}

}  // namespace prun::verify
