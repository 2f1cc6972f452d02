// Jobs for parity tests: tests/parity/gpt.lua or another plan through script, compile and verify, as `prun` builds
// them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exec/virtual_ranks.h"
#include "ir/program.h"

namespace prun::test {

using Settings = std::map<std::string, std::string>;

// Returns a verified job for `ranks` ranks on a device. `plan`: path from the repository's root; `fused`: compile for a
// device that supports all fused ops; `check_replicas`, `vocabulary_multiple`: options of prun.
Job parity_job(int ranks, const Settings& settings, const std::string& device = "cpu",
               const std::string& plan = "tests/parity/gpt.lua", bool fused = false, int64_t check_replicas = 0,
               int64_t vocabulary_multiple = 1);

// Returns the losses of all steps, after checking that all virtual ranks have bitwise the same.
std::vector<double> losses_of(const VirtualRun& run);
std::vector<double> interpret(int ranks, const Settings& settings, const std::string& device = "cpu");

}  // namespace prun::test
