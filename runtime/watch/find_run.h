// Resolves a user's name for a run: its folder, its id, or the pid of a running launcher.
#pragma once
#include <optional>
#include <string>

#include "watch/status_folder.h"

namespace prun {

struct FoundRun {
  std::string name;                 // its id, or the user's name for it
  std::string folder;               // "": none
  std::optional<PublishedJob> job;  // set if it runs, or if its killed launcher left a last flight
  bool running() const { return job && job->running; }
};

// `word` "": the only running job, otherwise the latest run in runs/ or of a killed launcher. Throws usage_error with
// the likely name if there is no such run.
FoundRun find_run(const std::string& word);

}  // namespace prun
