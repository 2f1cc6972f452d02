// prun as a process of mpirun, srun, torchrun or Kubernetes: each process is a node of the job, with one rank unless
// --nproc gives more.
#pragma once
#include <string>

#include "job/job_spec.h"

namespace prun {

// Call only if neither --nnodes nor --node-rank is given. If a launcher's environment describes several processes, sets
// the node, the rendezvous, and whether this process is silent. `launcher`: the value of --launcher; "" = the launcher
// whose variables are set. Throws usage_error.
void take_place_of_launcher(JobSpec& job, const std::string& launcher);

}  // namespace prun
