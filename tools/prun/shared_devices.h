// Transports of ranks that share a device (--ranks-per-device).
#pragma once
#include <string>

#include "job/job_spec.h"

namespace prun {

// Returns the transport of ranks that share devices: NCCL refuses them, so `auto` means host memory. Throws usage_error
// for nccl without its option share=1.
std::string transport_of_sharing_ranks(const JobSpec& spec);
// Throws usage_error if nccl.share=1 cannot work: another transport, several nodes, too many ranks on a device.
void check_nccl_share(const JobSpec& spec);

}  // namespace prun
