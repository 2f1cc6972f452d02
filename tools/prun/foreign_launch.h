// prun as one process of mpirun, srun, torchrun or Kubernetes: each is a node of the job, with one rank unless --nproc
// says more.
#pragma once
#include <string>

#include "job/job_spec.h"

namespace prun {

// Where the environment says that this process is one of several, and neither --nnodes nor --node-rank is given: the
// node, where the nodes meet, and who speaks. Throws usage_error.
void take_place_of_launcher(JobSpec& job, const std::string& launcher);

}  // namespace prun
