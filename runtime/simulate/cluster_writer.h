// Writes what was measured of a machine as a cluster file that cluster_reader.h reads.
#pragma once
#include <string>

#include "simulate/cluster.h"

namespace prun::simulate {

// One node. `comment`: lines that say where the figures come from; they get their "# ".
std::string cluster_text(const Cluster& cluster, const std::string& comment);

}  // namespace prun::simulate
