// --cluster FILE of a run and of the doctor: the hosts that the file's `nodes:` name are the nodes of the job, so that
// one command is the same on all of them.
#pragma once
#include "command.h"

namespace prun {

struct GivenPlace {
  bool nnodes = false, node_rank = false, nproc = false;  // were given on the command line, and hold
};

// Sets how many nodes there are, which of them this machine is, how many ranks it has and where node 0 listens. Throws
// usage_error: the file names no hosts, or this machine is none or several of them.
// The job's nodes, in order, are returned.
std::vector<std::string> take_place_among_hosts(JobSpec& job, const std::string& cluster, const GivenPlace& given);
GivenPlace given_place(const CommandLine& line);

}  // namespace prun
