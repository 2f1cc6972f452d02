// Builds a verified job from a plan's path: script, plan, compile, verify, in this order.
#pragma once
#include <optional>
#include <vector>

#include "device/device.h"
#include "ir/plan.h"
#include "ir/program.h"
#include "job/job_spec.h"
#include "script/script.h"

namespace prun {

Job build_job(const JobSpec& spec, int ranks, Plan* read = nullptr);  // `read`: receives the plan
// Compiles a recorded plan for `ranks`; `verified`: also verifies it for this device. `only`: ranks of the pipeline
// whose programs are compiled; empty = all.
Job compile_plan(const JobSpec& spec, const Plan& plan, int ranks, bool verified, const std::vector<int>& only = {});
// Compiles the programs of some ranks of a plan's pipeline as they would run; the others are empty.
Job compile_ranks(const JobSpec& spec, const Plan& plan, const std::vector<int>& ranks);
// Compiles a plan for estimates; it cannot run. `memory`: arena sizes are approximate, otherwise missing.
Job compile_roughly(const JobSpec& spec, const Plan& plan, bool memory, const std::vector<int>& only = {});
// Returns the value of --pad-vocabulary, or the device's multiple without that option.
int64_t vocabulary_multiple(const JobSpec& spec, const Device& device);
// Records the plan by its script, optionally with other sizes.
Plan record_plan(const JobSpec& spec, int ranks, std::optional<PlanSizes> sizes = std::nullopt);
// Records plans that differ only in pipeline length and microbatches, by one run of the script.
std::vector<Plan> record_plans(const JobSpec& spec, int ranks, std::vector<PlanSizes> sizes);
// Records the plan without its schedule's slots, because they are many; the result cannot be compiled. `digest`:
// receives a hash, equal for equal plans.
Plan outline_plan(const JobSpec& spec, int ranks, size_t* digest = nullptr);
// Records the model of `prun generate` for one sample, its weights split over the ranks.
Plan record_generation(const JobSpec& spec, int ranks);
// Runs the plan's script for its print and its remarks, before a search runs it with other arguments.
void print_remarks(const JobSpec& spec);
// Returns the description and the arguments that the plan declares; compiles nothing.
ScriptResult describe_plan(const JobSpec& spec);

}  // namespace prun
