// Who started this process, read from the environment: mpirun, srun, torchrun and Kubernetes tell each process its
// place in variables of their own. A launcher is a row of the table in environments.cc.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace prun {

// A process among those that a launcher started for one job; -1 and "" stand for what it does not tell.
struct ForeignPlace {
  std::string launcher;  // the row's name
  int index = 0, count = 1;
  int local_index = -1, local_count = -1;  // among the processes of this host
  std::string job;                         // the same for all processes of the job, and no others
  std::string rendezvous;                  // HOST:PORT, where the launcher names a host that has process 0
};

using ReadVariable = std::function<const char*(const char*)>;  // getenv, except in tests

// The place among several processes; nothing where nobody says that there are several. `chosen`: the row to take
// ("": the first in order that speaks; "none": no row). Throws usage_error with the table where two rows that speak
// differ, for a number that is none, and for a chosen row that is silent or not there.
std::optional<ForeignPlace> read_environments(const ReadVariable& variable, const std::string& chosen);

std::vector<std::string> environment_names();

// One line a row, each behind a newline: what it says, and which of its variables are missing. For messages and `prun
// doctor`.
std::string environments_table(const ReadVariable& variable);

}  // namespace prun
