// Sources of the weights of a generation: a checkpoint next to a plan, or a folder that describes its own model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "ir/plan.h"
#include "ir/program.h"
#include "job/job_spec.h"

namespace prun {

// Throws checkpoint_invalid, naming both sides, if the weights belong to another model.
void require_fit(checkpoint::Weights weights, const Job& job);
// Replaces the plan by a folder whose weights describe their model: records lua/prun/described_model.lua and loads the
// folder's weights. Throws usage_error, checkpoint_invalid.
void take_folder(JobSpec& spec);
// Returns the end-of-text tokens from the configuration of a Hugging Face folder; empty for other folders.
std::vector<int32_t> ends_of_folder(const std::string& folder);

// Checks that the weights of init = prun.init.from { path = ... } belong to the plan's model. Throws checkpoint_invalid
// at the plan's line, naming both sides. `trains`: reads all of a checkpoint and compares its SHA-256. With
// missing = "initialise" prints the parameters that the weights lack. A run that resumes reads neither.
void require_weights_fit(const Plan& plan, bool trains, bool resumes);

}  // namespace prun
