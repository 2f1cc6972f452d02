// The state of the job that plugins and wait loops see: the log, the news that the job is ending, the share of cores.
// One per process, because the callbacks of prun_host carry no pointer of ours and a plugin keeps the struct for good.
#pragma once
#include <string>
#include <vector>

#include "comm/comm.h"

namespace prun {

// What the core offers a plugin.
const prun_host& core_services();

// Makes `bootstrap` the one whose abort flag everybody sees (null: none), forgets World::abort, and divides this
// process's cores among `local_ranks`. Not while a transport is open.
void set_job(const Bootstrap* bootstrap, int local_ranks);

// The rest may be called by any thread.
void set_job_aborted();                              // World::abort
bool job_aborted();                                  // by the bootstrap or set_job_aborted
std::string job_abort_reason();                      // "the job is ending" when nobody knows more
void report_activity(const std::string& what);       // Bootstrap::doing
void report_waiting(const std::vector<int>& ranks);  // Bootstrap::waits_for

}  // namespace prun
