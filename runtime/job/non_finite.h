// --non-finite: policy for gradients or a loss that are not finite.
#pragma once
#include <cstdint>
#include <string>

#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct JobSpec;

inline constexpr int64_t kMostSkips = 10;  // consecutive steps without an update after which a run ends

// Returns "stop", "skip" or "rollback"; throws usage_error for others.
std::string check_non_finite(const std::string& policy);
// Throws usage_error for options that do not go together. `stop` is equivalent to --check-finite.
void check_non_finite_options(JobSpec& spec);
int64_t most_skips(const JobSpec& spec);  // Schedule::most_skips
// Call once the plan is known. Throws usage_error if rollback has no commits to return to; `require_updates` throws a
// plan error if nothing is trained.
void require_commits_for_rollback(const JobSpec& spec, const Plan& plan);
void require_updates(const JobSpec& spec, const Job& job);

}  // namespace prun
