// prun as one process of mpirun, srun, torchrun or Kubernetes: each is a node of the job, with one rank unless --nproc
// says more.
#pragma once
#include <string>

#include "job/job_spec.h"

namespace prun {

// Call it only if neither --nnodes nor --node-rank is given. If the environment of a launcher says that this process is
// one of several, sets the node, the rendezvous, and whether this process is silent. `launcher`: the value of
// --launcher; "" = whichever launcher has set its variables. Throws usage_error.
void take_place_of_launcher(JobSpec& job, const std::string& launcher);

}  // namespace prun
