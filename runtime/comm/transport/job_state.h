// What prun offers a plugin: its log, the news that the job is ending, the share of cores. One per process, because the
// callbacks of the ABI carry no pointer of ours and a plugin keeps the struct for good.
#pragma once
#include <string>

#include "comm/comm.h"

namespace prun {

const prun_host& host_table();  // cores_per_rank as last set

// The bootstrap whose abort flag plugins see; null: none. set_host(nullptr) also forgets an abort.
void set_host(const Bootstrap* bootstrap, int local_ranks);
void set_aborted();                        // any thread: World::abort
bool host_aborted();                       // any thread
std::string host_abort_reason();           // "the job is ending" when nobody knows more
void host_doing(const std::string& what);  // Bootstrap::doing

}  // namespace prun
