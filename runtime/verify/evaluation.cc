// The eval body is proved as a step of its own job: every rule then holds for it, too. What is left to say is that it
// changes nothing that training builds on, and that all ranks evaluate at the same steps.
#include <fmt/format.h>

#include <algorithm>

#include "verify/view.h"

namespace prun::verify {

std::optional<Job> evaluation_of(const Job& job) {
  const auto evaluates = [](const Program& program) { return program.eval.op_count() > 0; };
  if (std::none_of(job.classes.begin(), job.classes.end(), evaluates)) return std::nullopt;
  Job evaluation = job;
  for (Program& program : evaluation.classes) {
    program.step = std::move(program.eval);
    program.eval = {};
    program.data = program.eval_data;
    program.loss_tensor = program.eval_loss_tensor;
    program.eval_loss_tensor = -1;
    program.schedule.steps = 2;  // batches: more than one, so that one has to end before the next begins
    program.schedule.eval_every = program.schedule.eval_batches = 0;
  }
  return evaluation;
}

void evaluation_changes_nothing(const Job& job, Findings& findings) {
  for (const Program& program : job.classes) {
    const Schedule &mine = program.schedule, &first = job.classes.front().schedule;
    if (mine.eval_every != first.eval_every || mine.eval_batches != first.eval_batches)
      findings.add("ranks evaluate at different steps",
                   fmt::format("{} batches after every {} steps, and {} after every {}", first.eval_batches,
                               first.eval_every, mine.eval_batches, mine.eval_every),
                   {});
    const TensorId loss = program.eval_loss_tensor;
    const BufferId own = loss < 0 ? BufferId() : program.tensors[loss].buffer;
    for (const Stream& stream : program.eval.streams)
      for (const Op& op : stream.ops)
        for (const int id : op.writes) {
          const BufferId buffer = program.tensors[id].buffer;
          const Buffer& written = program.buffers[buffer];
          if (!written.persistent || buffer == own) continue;
          findings.add("an evaluation changes the training",
                       fmt::format("{} of the evaluation writes '{}', which persists from step to step", op.def->name,
                                   written.name),
                       op.site);
        }
  }
}

}  // namespace prun::verify
