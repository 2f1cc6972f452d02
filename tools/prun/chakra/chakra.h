// prun dump --format chakra: writes a step as execution traces of MLCommons Chakra 1.0, which ASTRA-sim and others
// replay.
#pragma once
#include <string>
#include <vector>

#include "ir/program.h"

namespace prun {

// Writes PREFIX.R.et for each rank R, length-prefixed protocol buffer messages, and PREFIX.groups.json, the ranks of
// each process group by its number. Throws usage_error if a file cannot be written.
void write_chakra(const Job& job, const std::string& prefix);

}  // namespace prun

namespace prun::chakra {

// An executable order of all ops of a step, by rank. Collectives of ranks that share several groups have the same order
// on all of these ranks. Simulators that run one collective per rank at a time would hang in other orders, unlike
// prun's streams.
struct Place {
  int stream = 0, op = 0;
};

// Returns the order by rank. The job must be verified.
std::vector<std::vector<Place>> op_order(const Job& job);

}  // namespace prun::chakra
