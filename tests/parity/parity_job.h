// Jobs for parity: tests/parity/gpt.lua, or another plan, through script, compile and verify, as `prun` does it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exec/virtual_ranks.h"
#include "ir/program.h"

namespace prun::test {

using Settings = std::map<std::string, std::string>;

// A verified job for `ranks` ranks on a device; `plan` as seen from the repository's root; `fused`: as for a device
// that wants all ops that are several in one, whatever this one wants; `check_replicas`, `vocabulary_multiple`: as the
// options of prun.
Job parity_job(int ranks, const Settings& settings, const std::string& device = "cpu",
               const std::string& plan = "tests/parity/gpt.lua", bool fused = false, int64_t check_replicas = 0,
               int64_t vocabulary_multiple = 1);

// The losses of all steps, after checking that all virtual ranks have the same bits.
std::vector<double> losses_of(const VirtualRun& run);
std::vector<double> interpret(int ranks, const Settings& settings, const std::string& device = "cpu");

}  // namespace prun::test
