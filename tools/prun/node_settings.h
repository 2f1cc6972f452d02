// What must be the same on all nodes, although only node 0's is used.
#pragma once
#include <vector>

#include "options.h"

namespace prun {

std::vector<NodeSetting> node_settings(const Options& options);

}  // namespace prun
