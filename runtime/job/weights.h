// Where the weights of a generation come from: a checkpoint beside a plan, or a folder that says its model itself.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "ir/plan.h"
#include "ir/program.h"
#include "job/job_spec.h"

namespace prun {

// Throws checkpoint_invalid, with both sides, where the weights are another model's.
void require_fit(const checkpoint::Weights& weights, const Job& job);
// Instead of a plan a folder whose weights say their model: what is recorded is lua/prun/described_model.lua, what is
// loaded the folder, and its tokenizer.json is taken. Throws usage_error, checkpoint_invalid.
void take_folder(JobSpec& spec);
// The tokens after which the configuration of a Hugging Face folder ends a text; of other folders none.
std::vector<int32_t> ends_of_folder(const std::string& folder);

// init = prun.init.from { path = ... }: whether the weights there are those of the plan's model.
// Throws checkpoint_invalid at the plan's line, with both sides. `whole`: reads all of a checkpoint and compares its
// SHA-256.
void require_weights_fit(const Plan& plan, bool whole);

}  // namespace prun
