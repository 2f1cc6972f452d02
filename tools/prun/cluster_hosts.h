// --cluster FILE of a run and of the doctor: the hosts that the file's `nodes:` name are the nodes of the job, so that
// one command is the same on all of them.
#pragma once
#include "command.h"

namespace prun {

struct GivenPlace {
  bool nnodes = false, node_rank = false, nproc = false;  // were given on the command line, and hold
};

// Sets the number of nodes, the index of this machine among them, its ranks, and the address of node 0. Returns the
// hosts of the nodes, in order. Throws usage_error: the file names no hosts, or this machine is none or several of
// them.
std::vector<std::string> take_place_among_hosts(JobSpec& job, const std::string& cluster, const GivenPlace& given);
GivenPlace given_place(const CommandLine& line);

}  // namespace prun
