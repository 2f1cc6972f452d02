// Orders this rank's schedule steps: by the pipeline's schedule, or forward and backward of one microbatch after the
// other.
#include <fmt/format.h>

#include "compile/compile_state.h"

namespace prun {
namespace {

StageStep stage_step(const CompileState& state, int stage, Phase phase, int microbatch, Half half) {
  StageStep turn;
  turn.stage = stage;
  turn.forwards = {phase, 0, microbatch, half};
  int calls = std::ssize(state.graph.calls);
  for (int i = 0; i < calls; ++i) {
    CallId call = phase == Phase::forward ? i : calls - 1 - i;
    if (state.graph.calls[call].stage == stage) turn.calls.push_back({phase, call, microbatch, half});
    if (state.graph.calls[call].stage < stage) turn.forwards.call = std::max(turn.forwards.call, call);
  }
  return turn;
}

}  // namespace

void schedule(CompileState& state) {
  if (!state.plan.pipeline) {
    for (int microbatch = 0; microbatch < state.plan.microbatches; ++microbatch)
      for (Phase phase : {Phase::forward, Phase::backward})
        state.steps.push_back(stage_step(state, 0, phase, microbatch, Half::whole));
    return;
  }
  const Pipeline& pipeline = *state.plan.pipeline;
  int rank = state.pipeline_rank;
  for (const PipelineTurn& turn : pipeline.turns[rank]) {
    int stage = stage_of_chunk(state.plan, rank, turn.chunk);
    Phase phase = turn.kind == PipelineTurn::Kind::forward ? Phase::forward : Phase::backward;
    Half half = turn.kind == PipelineTurn::Kind::input    ? Half::input
                : turn.kind == PipelineTurn::Kind::weight ? Half::weight
                                                          : Half::whole;
    state.steps.push_back(stage_step(state, stage, phase, turn.microbatch, half));
    state.steps.back().with_next = turn.with_next;
  }
}

std::string schedule_text(const CompileState& state) {
  std::string out;
  for (const StageStep& step : state.steps) {
    const ScheduleStep& first = step.front();
    const std::string_view half = first.half == Half::input    ? " of inputs"
                                  : first.half == Half::weight ? " of weights"
                                                               : "";
    out += fmt::format("{}{} of microbatch {}, stage {}:", phase_name(first.phase), half, first.microbatch, step.stage);
    if (step.with_next) out += " (with the next slot)";
    for (const ScheduleStep& call : step.calls) out += " " + state.graph.units[state.graph.calls[call.call].unit].name;
    out += "\n";
  }
  return out;
}

}  // namespace prun
