// A generation: the model of a plan continues a text, token by token, with the weights of a checkpoint. It is an
// ordinary program: its step is one token, the KV caches are in the arena, and a body before the first step reads the
// prompt in chunks.
#pragma once
#include <cstdint>

#include "ir/plan.h"

namespace prun {

struct CompileState;

inline constexpr int64_t kUsualTokens = 200;

struct Generation {
  int64_t prompt = 1;  // tokens, at least 1
  int64_t tokens = 0;  // upper bound of generated tokens; 0 = kUsualTokens, or as many as fit the context
};

// Returns the plan reduced to the model and the split of its weights. Strategies that divide data, shard state or
// schedule stages are dropped, because weights are loaded anew. Expects a plan recorded for one sample (PlanSizes).
// Throws plan_error if the plan is not a language model, or if its context is too small.
Plan generation_plan(Plan plan, const Generation& generation);

// Return the model's context length and vocabulary size in tokens; throw plan_error as generation_plan does.
int64_t context_of(const Graph& graph);
int64_t vocabulary_of(const Graph& graph);

// The passes, in the order of pipeline.cc.
void decode(CompileState& state);    // decode.cc: the model graph of one token
void generate(CompileState& state);  // generate.cc: the bodies

// Rewrites the model graph for `tokens` tokens of one sequence: positions are inputs, and KV caches hold `text` tokens.
// With `sample` it ends by sampling a token; otherwise by filling the caches.
void decode_graph(Graph& graph, int64_t tokens, int64_t text, bool sample);
// Returns the number of tokens of the text that the model processes: all but the last generated one. `plan`: from
// generation_plan.
int64_t text_of(const Plan& plan, const Generation& generation);

}  // namespace prun
