// prun dump --format chakra: a step as execution traces of MLCommons Chakra 1.0, which ASTRA-sim and others replay.
#pragma once
#include <string>
#include <vector>

#include "ir/program.h"

namespace prun {

// Writes PREFIX.R.et for each rank R, messages of protocol buffers with their lengths before them, and
// PREFIX.groups.json, the ranks of each process group by its number. Throws usage_error where one cannot be written.
void write_chakra(const Job& job, const std::string& prefix);

}  // namespace prun

namespace prun::chakra {

// One order of all ops of a step, on every rank, in which they can run: collectives of ranks that share several groups
// come in the same order on all of them. Simulators that run one collective of a rank at a time need it, or they hang
// where our streams would not.
struct Place {
  int stream = 0, op = 0;
};

// By rank, of a verified job.
std::vector<std::vector<Place>> op_order(const Job& job);

}  // namespace prun::chakra
