#include "non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "options.h"
#include "replicas.h"

namespace prun {

std::string check_non_finite(const std::string& policy) {
  const std::vector<std::string> known = {"stop", "skip", "rollback"};
  if (std::find(known.begin(), known.end(), policy) == known.end())
    throw usage_error(
        fmt::format("--non-finite is stop, skip or rollback, not '{}'{}", policy, if_near(policy, known)));
  return policy;
}

void check_non_finite_options(Options& options) {
  if (options.non_finite == "stop") options.check_finite = true;
  if (options.non_finite == "rollback" && options.command == "run" && options.restart.most == 0)
    throw usage_error("--non-finite rollback needs --max-restarts K: how often the job may go back");
}

int64_t most_skips(const Options& options) {
  return options.non_finite == "skip" ? kMostSkips : options.non_finite == "rollback" ? 1 : 0;
}

void require_commits_for_rollback(const Options& options, const Plan& plan) {
  const CheckpointSettings& checkpoint = options.checkpoint;
  if (options.non_finite != "rollback" || keeps_replicas(options, plan)) return;
  if (checkpoint.folder.empty())
    throw usage_error(
        "--non-finite rollback goes back to the last checkpoint, and this job keeps none: give --checkpoint DIR "
        "--checkpoint-every K");
  if (checkpoint.every == 0)
    throw usage_error(
        "--non-finite rollback goes back to the last checkpoint, and this job keeps one at its end only: give "
        "--checkpoint-every K");
}

void require_updates(const Options& options, const Job& job) {
  const auto updates = [](const Op& op) { return op.def->role == OpRole::optimizer; };
  if (most_skips(options) == 0) return;
  for (const Program& program : job.classes)
    for (const Stream& stream : program.step().streams)
      if (std::any_of(stream.ops.begin(), stream.ops.end(), updates)) return;
  throw plan_error(fmt::format("--non-finite {}: this plan has no optimizer, so there is no update to leave out",
                               options.non_finite));
}

}  // namespace prun
