// prun PLAN: checks this host's devices, settles what the command line leaves open, and runs the job.
#include "calibrate/algorithm_costs.h"
#include "commands.h"
#include "job/attempt.h"
#include "job/device_check.h"
#include "job/settle.h"
#include "shared_devices.h"

namespace prun {

int run_command(Options& options) {
  JobSpec& job = options.job;
  const DeviceReport devices = check_devices(job);
  check_nccl_share(job);
  if (job.ranks_per_device > 1 && !devices.devices.empty()) job.world.transport = transport_of_sharing_ranks(job);
  settle_job(job);
  if (job.launch.node_rank == 0 && job.world.algorithm.empty())
    job.world.algorithm_costs = calibrated_algorithm_costs(job.world.transport_options);
  return run_job(job, devices);
}

}  // namespace prun
