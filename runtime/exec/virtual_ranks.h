// Runs a job in this process as N virtual ranks: the meaning of a program, without threads, transports or time.
//
// Parity tests hold the real executor to it bit by bit. Surprising fact: which of the ready ops runs next is chosen by
// the caller's seed, and bytes that no live buffer holds are poisoned, so a missing edge shows as another result.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "ir/program.h"

namespace prun {

// Among the ops that edges allow: communication as early as it can, as late as it can, or any by the seed. A send ends
// at once when early, with its receive when late, and either way by the seed.
enum class VirtualOrder { early, late, random };

struct VirtualOptions {
  VirtualOrder order = VirtualOrder::early;
  uint64_t seed = 1;   // of VirtualOrder::random
  int threads = 1;     // of a kernel, as the rank has them that is compared: they decide the order of some sums
  bool poison = true;  // fill what is not persistent with NaNs before every step
  // Called behind each op that has written something; null: nobody looks.
  std::function<void(const RankMemory& memory, const Op& op)> after;
};

struct VirtualBuffer {
  std::string name;
  std::vector<std::byte> bytes;
};

struct VirtualRun {
  std::vector<std::vector<double>> losses;             // by step, then rank; empty when the program has none
  std::vector<std::vector<double>> eval_losses;        // by evaluation, then rank: means over its batches
  std::vector<std::vector<VirtualBuffer>> persistent;  // by rank: after the last step, in the program's order
  std::vector<std::pair<int, std::string>> printed;    // rank and line
};

// Reductions are sums in rank order whatever the program says. Throws what kernels throw; ranks that wait
// for each other, which verify refuses, end with a plan_error that says where.
VirtualRun run_virtual_ranks(const Job& job, const Device& device, const VirtualOptions& options = {});

}  // namespace prun
