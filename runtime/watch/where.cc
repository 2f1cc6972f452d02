#include "watch/where.h"

#include <fmt/format.h>

#include "ir/calendar.h"

namespace prun {

std::string where_is(const Job& job, int rank, const RecorderHeader& recorder) {
  if (recorder.phase.load() == RunPhase::joining)
    return std::string("joining") + (recorder.doing[0] != '\0' ? ": " : "") + recorder.doing;
  const Program& program = job.program(rank);
  const BodyId id = static_cast<int>(recorder.body.load());
  const Body& body = program.bodies[id];
  for (size_t s = 0; s < body.streams.size(); ++s)
    if (recorder.stream[s].running.load() == 3)
      return fmt::format("{}: a graph of it, replayed by the device (--trace FILE has its ops one by one)",
                         moment_text(program, id, recorder.stream[s].step.load()));
  // The stream that is inside an op, else the compute stream.
  for (bool running : {true, false}) {
    for (size_t s = 0; s < body.streams.size(); ++s) {
      const StreamState& state = recorder.stream[s];
      if (running && state.running.load() != 1) continue;
      uint32_t op = state.op.load();
      if (op < body.streams[s].ops.size())
        return fmt::format("{}: {}{}", moment_text(program, id, state.step.load()), running ? "" : "waiting to run ",
                           op_words(body.streams[s].ops[op]));
    }
  }
  return "";
}

}  // namespace prun
