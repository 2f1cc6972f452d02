// --kernels: the CPU kernels that all ranks of a job use (kernels/cpu/kernel_choice.h). Node 0 chooses once for all
// attempts, by the first of these that applies:
//
//     --kernels                       the user's choice
//     the checkpoint's kernels        losses remain bitwise identical
//     minimum over all nodes' CPUs    the fastest that every node can run
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"

namespace prun {

struct JobSpec;

struct KernelSettings {
  std::string asked;   // --kernels; "": not given
  std::string chosen;  // settled, on node 0; "": the device has no such choice
};

std::string check_kernels(const std::string& text);  // throws usage_error with the likely name

// Returns the most demanding kernels that this node's CPU can run, for its inventory.
std::string node_kernels();
// Node 0: returns why a node with this inventory cannot take part, to be appended to its name; "": it can.
std::string lacks_kernels(const KernelSettings& settings, const std::string& inventory);
// Node 0, after the nodes have joined and before the plan is compiled: makes the choice, also for this process. Returns
// lines for the user. Throws usage_error if --kernels exceeds this CPU.
std::string settle_kernels(JobSpec& spec, const std::vector<std::string>& inventories = {});

// Node 0, once kernels and algorithms are settled: returns the value of Job::numerics.
Numerics settled_numerics(const JobSpec& spec);

// Applies the job's choice in a rank, before it creates a kernel.
void take_kernels_of(const Job& job);

}  // namespace prun
