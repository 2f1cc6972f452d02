// The order in which this rank computes: a pipeline's schedule, or microbatch after microbatch, each forward and
// backward.
#include "compile/draft.h"

namespace prun {
namespace {

StageTurn stage_turn(const Draft& draft, int stage, Phase phase, int microbatch, Half half) {
  StageTurn turn;
  turn.stage = stage;
  int calls = std::ssize(draft.graph.calls);
  for (int i = 0; i < calls; ++i) {
    CallId call = phase == Phase::forward ? i : calls - 1 - i;
    if (draft.graph.calls[call].stage == stage) turn.calls.push_back({phase, call, microbatch, half});
  }
  return turn;
}

}  // namespace

void schedule(Draft& draft) {
  if (!draft.plan.pipeline) {
    for (int microbatch = 0; microbatch < draft.plan.microbatches; ++microbatch)
      for (Phase phase : {Phase::forward, Phase::backward})
        draft.turns.push_back(stage_turn(draft, 0, phase, microbatch, Half::whole));
    return;
  }
  const Pipeline& pipeline = *draft.plan.pipeline;
  int rank = draft.pipeline_rank;
  for (const PipelineTurn& turn : pipeline.turns[rank]) {
    int stage = stage_of_chunk(draft.plan, rank, turn.chunk);
    Phase phase = turn.kind == PipelineTurn::Kind::forward ? Phase::forward : Phase::backward;
    Half half = turn.kind == PipelineTurn::Kind::input    ? Half::input
                : turn.kind == PipelineTurn::Kind::weight ? Half::weight
                                                          : Half::whole;
    draft.turns.push_back(stage_turn(draft, stage, phase, turn.microbatch, half));
  }
}

}  // namespace prun
