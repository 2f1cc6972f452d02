// One order of all ops of a step, on every rank, in which they can run: collectives of ranks that share several groups
// come in the same order on all of them. Simulators that run one collective of a rank at a time need it, or they hang
// where our streams would not.
#pragma once
#include <vector>

#include "ir/program.h"

namespace prun::chakra {

struct Place {
  int stream = 0, op = 0;
};

// By rank, of a verified job.
std::vector<std::vector<Place>> op_order(const Job& job);

}  // namespace prun::chakra
