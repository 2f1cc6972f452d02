// One rank, from the bytes of the job to its last step.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/data_identity.h"
#include "job/device_probe.h"
#include "job/job_spec.h"
#include "launch/launch.h"

namespace prun {

// Returns the exit code of the rank's process; reports failures to the launcher through start.launcher. `devices`:
// report on this host's devices. `data`: node 0's result of identify_data; empty = checkpoints store none.
int run_rank(const RankStart& start, const JobSpec& spec, const DeviceReport& devices,
             const std::vector<checkpoint::DataIdentity>& data = {});

// Runs any other body of a rank. `where`: the op for the message; "" = the launcher reads it from the recorder.
int be_rank(const RankStart& start, const std::function<void(std::string& where)>& body);

}  // namespace prun
