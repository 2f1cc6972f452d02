// LoRA adapters of a job and the weights below them, the base.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/hf/peft_folder.h"
#include "checkpoint/index.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct JobSpec;

// Returns the folder of the base that the adapters of a checkpoint name; "" = none, or no checkpoint of adapters.
std::string base_of_checkpoint(const std::string& checkpoint);
// Makes --base absolute. Throws usage_error if there is no such folder.
void settle_base_option(std::string& base);
// Throws usage_error for --base and a plan without prun.init.from.
void require_base_used(const JobSpec& spec, const Plan& plan);
// Adds to the job's adapters what checkpoints record: the digest of the base and the names of linear layers.
void settle_base(JobSpec& spec, const Plan& plan, Job& job);
// Throws checkpoint_invalid if the checkpoint's adapters have another base or another scale than the job's.
void require_adapters_fit(const std::string& folder, const Adapters& there, const Program& program);
// Throws plan_error for a frozen parameter that the base of adapters lacks. `missing`: the parameters that it lacks.
void require_whole_base(const Plan& plan, const std::vector<std::string>& missing);
// Throws checkpoint_invalid, naming both sides, if the adapters that the plan begins with are not those of its lora.
void require_peft_fits(const Plan& plan, const checkpoint::PeftWeights& peft);
// Whether the parameter is part of an adapter.
bool is_adapter(const std::string& parameter);

}  // namespace prun
