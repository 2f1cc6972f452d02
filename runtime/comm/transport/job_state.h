// The job's state as plugins and wait loops see it: log, abort flag, share of cores. There is one state per process,
// because prun_host's callbacks carry no context pointer and a plugin keeps the struct forever.
#pragma once
#include <string>
#include <vector>

#include "comm/comm.h"

namespace prun {

// Returns the services of the core for plugins.
const prun_host& core_services();

// Makes `bootstrap` the source of the abort flag (null = none), clears World::abort, and divides this process's cores
// among `local_ranks`. Must not be called while a transport is open.
void set_job(const Bootstrap* bootstrap, int local_ranks);

// Any thread may call the rest.
void set_job_aborted();                              // implements World::abort
bool job_aborted();                                  // by the bootstrap or set_job_aborted
std::string job_abort_reason();                      // "the job is ending" if unknown
void report_activity(const std::string& what);       // calls Bootstrap::doing
void report_waiting(const std::vector<int>& ranks);  // calls Bootstrap::waits_for

}  // namespace prun
