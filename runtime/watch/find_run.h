// Which run a user means: the folder of a run, its id, or the process number of a running launcher.
#pragma once
#include <optional>
#include <string>

#include "watch/status_folder.h"

namespace prun {

struct FoundRun {
  std::string name;                 // its id, or how the user named it
  std::string folder;               // "": it has none
  std::optional<PublishedJob> job;  // it runs, or its launcher was killed and has left its last flight
  bool running() const { return job && job->running; }
};

// `word` "": the only job that runs, else the latest run in runs, or that of a launcher that was killed since. Throws
// usage_error: no such run, with the likely one.
FoundRun find_run(const std::string& word);

}  // namespace prun
