// Returns the options that must be equal on all nodes although only node 0's are used.
#pragma once
#include <vector>

#include "job/job_spec.h"

namespace prun {

std::vector<NodeSetting> node_settings(const JobSpec& spec);

}  // namespace prun
