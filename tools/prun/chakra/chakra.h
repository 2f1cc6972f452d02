// prun dump --format chakra: a step as execution traces of MLCommons Chakra 1.0, which ASTRA-sim and others replay.
#pragma once
#include <string>

#include "ir/program.h"

namespace prun {

// Writes PREFIX.R.et for each rank R, messages of protocol buffers with their lengths before them, and
// PREFIX.groups.json, the ranks of each process group by its number. Throws usage_error where one cannot be written.
void write_chakra(const Job& job, const std::string& prefix);

}  // namespace prun
