// --kernels: which kernels all ranks of a job take on CPUs (kernels/cpu/kernel_choice.h). Node 0 chooses once, for all
// attempts: what --kernels says; else what the checkpoint was computed with, so that losses go on to the bit; else the
// fastest that the CPUs of all nodes can run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"

namespace prun {

struct JobSpec;

struct KernelSettings {
  std::string asked;   // --kernels; "": nothing was
  std::string chosen;  // settled, on node 0; "": the device makes no such choice
};

std::string check_kernels(const std::string& text);  // throws usage_error, naming the likely word

// What this node's CPU can run, for its inventory.
std::string node_kernels();
// Node 0: why a node with this inventory cannot take part, for a message that names it; "": it can.
std::string lacks_kernels(const KernelSettings& settings, const std::string& inventory);
// Node 0, once the nodes have joined and before the plan is compiled: the choice, for this process, too. Returns what
// the user should know of it, whole lines. Throws usage_error where --kernels asks for more than this CPU can do.
std::string settle_kernels(JobSpec& spec, const std::vector<std::string>& inventories = {});

// Node 0, once kernels and algorithms are settled: what Job::numerics holds.
Numerics settled_numerics(const JobSpec& spec);

// A rank, before it makes a kernel.
void take_kernels_of(const Job& job);

}  // namespace prun
