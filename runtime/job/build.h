// From a plan's path to a verified job: script, plan, compile, verify, in this order.
#pragma once
#include <optional>
#include <vector>

#include "device/device.h"
#include "ir/plan.h"
#include "ir/program.h"
#include "job/job_spec.h"
#include "script/script.h"

namespace prun {

Job build_job(const JobSpec& spec, int ranks, Plan* read = nullptr);  // `read`: gets the plan
// A recorded plan for `ranks`, and whether it is verified for this device.
Job compile_plan(const JobSpec& spec, const Plan& plan, int ranks, bool verified);
// Of a recorded plan: the programs of some ranks of its pipeline as they would run; the others are empty.
Job compile_ranks(const JobSpec& spec, const Plan& plan, const std::vector<int>& ranks);
// Of a recorded plan: its arenas are about as large, or have no size, and it cannot run.
Job compile_roughly(const JobSpec& spec, const Plan& plan, bool memory);
// Returns the value of --pad-vocabulary, or the device's multiple without that option.
int64_t vocabulary_multiple(const JobSpec& spec, const Device& device);
// The plan as the script records it, or with other sizes.
Plan record_plan(const JobSpec& spec, int ranks, std::optional<PlanSizes> sizes = std::nullopt);
// The plan at sizes that differ only in the length of its pipeline and in microbatches, by one run of its script.
std::vector<Plan> record_plans(const JobSpec& spec, int ranks, std::vector<PlanSizes> sizes);
// The plan without the turns of its pipeline, which are many; not to be compiled. `digest`: gets a number that
// equal plans have alike.
Plan outline_plan(const JobSpec& spec, int ranks, size_t* digest = nullptr);
// Of `prun generate`: the model for one sample, its weights split over the ranks.
Plan record_generation(const JobSpec& spec, int ranks);
// The description and the arguments that the plan declares; compiles nothing.
ScriptResult describe_plan(const JobSpec& spec);

}  // namespace prun
