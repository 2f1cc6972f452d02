// --cluster FILE of a run and of the doctor: the hosts that the file's `nodes:` name are the nodes of the job, so that
// one command is the same on all of them.
#pragma once
#include "options.h"

namespace prun {

struct GivenPlace {
  bool nnodes = false, node_rank = false, nproc = false;  // were given on the command line, and hold
};

// Sets how many nodes there are, which of them this machine is, how many ranks it has and where node 0 listens. Throws
// usage_error: the file names no hosts, or this machine is none or several of them.
void take_place_among_hosts(Options& options, const GivenPlace& given);

}  // namespace prun
