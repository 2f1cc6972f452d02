// A job of the doctor's own: ranks that report findings, and what ended them where they could not.
#pragma once
#include <functional>
#include <string>

#include "doctor/check.h"
#include "launch/launch.h"

namespace prun::doctor {

void report(LauncherClient& launcher, const Finding& finding);  // by a rank; it reaches node 0

struct JobOutcome {
  int code = 0;
  Findings reported;
  std::string failure;  // the first line of what ended it
};
// Joins, launches and waits. Errors of joining are in the outcome, too.
JobOutcome run_job(const LaunchOptions& launch, const std::string& job, const Launch::RankMain& rank_main);

}  // namespace prun::doctor
