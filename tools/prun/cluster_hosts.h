// --cluster FILE of a run and of the doctor: the hosts in the file's `nodes:` are the nodes of the job, so that the
// same command works on all of them.
#pragma once
#include "command.h"

namespace prun {

struct GivenPlace {
  bool nnodes = false, node_rank = false, nproc = false;  // given on the command line, which takes precedence
};

// Sets the number of nodes, the index of this machine among them, its ranks, and the address of node 0. Returns the
// hosts of the nodes, in order. Throws usage_error if the file names no hosts, or this machine matches none or several.
std::vector<std::string> take_place_among_hosts(JobSpec& job, const std::string& cluster, const GivenPlace& given);
GivenPlace given_place(const CommandLine& line);

}  // namespace prun
