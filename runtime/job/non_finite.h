// --non-finite: what a run does where gradients or the loss are not finite.
#pragma once
#include <cstdint>
#include <string>

#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct JobSpec;

inline constexpr int64_t kMostSkips = 10;  // steps in a row that update nothing, after which a run ends

// "stop", "skip", "rollback"; throws usage_error for others.
std::string check_non_finite(const std::string& policy);
// Throws usage_error for options that do not go together. `stop` is --check-finite by another name.
void check_non_finite_options(JobSpec& spec);
int64_t most_skips(const JobSpec& spec);  // Schedule::most_skips
// Once the plan is known: throws usage_error where rollback has nothing to go back to, plan errors where nothing is
// trained.
void require_commits_for_rollback(const JobSpec& spec, const Plan& plan);
void require_updates(const JobSpec& spec, const Job& job);

}  // namespace prun
