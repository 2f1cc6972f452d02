// Reads a cluster file: YAML, whose fields tools/prun/SIMULATE.md documents.
#pragma once
#include <string>

#include "simulate/cluster.h"

namespace prun::simulate {

// Throws usage_error "FILE:LINE:COLUMN: ..": unknown keys with the likely one, wrong types and units, missing fields,
// files that include each other.
Cluster read_cluster(const std::string& path);

}  // namespace prun::simulate
