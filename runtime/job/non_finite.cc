#include "job/non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "job/job_spec.h"
#include "job/replicas.h"

namespace prun {

std::string check_non_finite(const std::string& policy) {
  const std::vector<std::string> known = {"stop", "skip", "rollback"};
  if (std::find(known.begin(), known.end(), policy) == known.end())
    throw usage_error(
        fmt::format("--non-finite is stop, skip or rollback, not '{}'{}", policy, if_near(policy, known)));
  return policy;
}

void check_non_finite_options(JobSpec& spec) {
  if (spec.non_finite == "stop") spec.check_finite = true;
  if (spec.non_finite == "rollback" && spec.purpose == Purpose::train && spec.restart.most == 0)
    throw usage_error("--non-finite rollback needs --max-restarts K: how often the job may go back");
}

int64_t most_skips(const JobSpec& spec) {
  return spec.non_finite == "skip" ? kMostSkips : spec.non_finite == "rollback" ? 1 : 0;
}

void require_commits_for_rollback(const JobSpec& spec, const Plan& plan) {
  const CheckpointSettings& checkpoint = spec.checkpoint;
  if (spec.non_finite != "rollback" || keeps_replicas(spec, plan)) return;
  if (checkpoint.folder.empty())
    throw usage_error(
        "--non-finite rollback goes back to the last checkpoint, and this job keeps none: give --checkpoint DIR "
        "--checkpoint-every K");
  if (checkpoint.every == 0)
    throw usage_error(
        "--non-finite rollback goes back to the last checkpoint, and this job keeps one at its end only: give "
        "--checkpoint-every K");
}

void require_updates(const JobSpec& spec, const Job& job) {
  const auto updates = [](const Op& op) { return op.def->role == OpRole::optimizer; };
  if (most_skips(spec) == 0) return;
  for (const Program& program : job.classes)
    for (const Stream& stream : program.step().streams)
      if (std::any_of(stream.ops.begin(), stream.ops.end(), updates)) return;
  throw plan_error(
      fmt::format("--non-finite {}: this plan has no optimizer, so there is no update to leave out", spec.non_finite));
}

}  // namespace prun
