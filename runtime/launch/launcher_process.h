// The processes of mpirun, torchrun or Slurm that started this one. If one of them is killed, no process waits
// for this job or ends its siblings on other hosts, so the job ends, too.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "launch/environments.h"

namespace prun {

// A process, identified by pid and start time, because pids are reused.
struct ProcessId {
  pid_t pid = 0;
  std::string start;         // field 22 of /proc/PID/stat
  std::string text() const;  // "77@1234"
};

// Returns the process, with an empty `start` if there is none.
ProcessId process_id(pid_t pid);
// A zombie is gone.
bool is_gone(const ProcessId& process);

// Returns the nearest ancestor of this process in whose initial environment `variable` is missing: the launcher that
// set it, also if wrapper scripts are in between. nullopt: init, or outside of this pid namespace.
std::optional<ProcessId> setter_of(const char* variable);

// Returns whether a shell has set the variable, or no living ancestor: by hand, or for a process that is gone.
bool is_left_over(const char* variable);

struct LauncherProcess {
  std::string launcher;  // row of the table in environments.cc
  ProcessId process;
};

// Returns what to print if a launcher of this process is gone; "": all run, or there is none. The first call finds
// them, so call it early.
std::string lost_launcher();
// Throws Error with the exit code of SIGKILL if a launcher is gone.
void require_launcher();

}  // namespace prun
