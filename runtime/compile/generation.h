// A generation: the model of a plan continues a text, token by token, from the weights of a checkpoint. A program as
// every other: its step is one token, the keys and values of the tokens before lie in the arena, and the prompt is read
// in chunks by a body that runs before the first step.
#pragma once
#include <cstdint>

#include "ir/plan.h"

namespace prun {

struct CompileState;

inline constexpr int64_t kUsualTokens = 200;

struct Generation {
  int64_t prompt = 1;  // tokens, at least 1
  int64_t tokens = 0;  // at most so many are made; 0: kUsualTokens, or as many as the context has room for
};

// The plan with what a generation takes from it: the model, and how its weights are split. What divides data, shards
// state or schedules stages goes, since weights are loaded anew. Expects a plan recorded for one sample (PlanSizes).
// Throws plan_error for a plan that is no language model, or that has too small a context.
Plan generation_plan(Plan plan, const Generation& generation);

// Tokens that the model sees at most, and how many different ones it knows. As generation_plan, these throw.
int64_t context_of(const Graph& graph);
int64_t vocabulary_of(const Graph& graph);

// The passes, in the order of pipeline.cc.
void decode(CompileState& state);    // decode.cc: the model graph of one token
void generate(CompileState& state);  // generate.cc: the bodies

// The model graph of `tokens` tokens of one sequence: positions are data, and keys and values are kept of `text`
// tokens. With `sample` it ends with the choice of a token; else with what the next tokens see of these.
void decode_graph(Graph& graph, int64_t tokens, int64_t text, bool sample);
// Tokens of a text that the model sees: all but the last one made. `plan`: generation_plan's.
int64_t text_of(const Plan& plan, const Generation& generation);

}  // namespace prun
