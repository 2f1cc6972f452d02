// Runs a job in this process as N virtual ranks: the semantics of a program, without threads, transports or time.
//
// Parity tests require bitwise identical results of the real executor. Surprising fact: the caller's seed chooses among
// the ready ops, and bytes outside live buffers are poisoned, so that a missing edge changes the result.
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

// The order among ready ops: communication as early as possible, as late as possible, or by the seed. A send ends at
// once when early, with its receive when late, and either way by the seed.
enum class VirtualOrder { early, late, random };

struct VirtualOptions {
  VirtualOrder order = VirtualOrder::early;
  uint64_t seed = 1;   // seed of VirtualOrder::random
  int threads = 1;     // cores of a kernel, as on the compared rank, because they determine the order of some sums
  bool poison = true;  // fill non-persistent memory with NaNs before every step
  // Called after each op that has written; may be null.
  std::function<void(const RankMemory& memory, const Op& op)> after;
};

struct VirtualBuffer {
  std::string name;
  std::vector<std::byte> bytes;
};

struct VirtualRun {
  std::vector<std::vector<double>> losses;             // by step, then rank; empty if the program has none
  std::vector<std::vector<double>> eval_losses;        // by evaluation, then rank: means over its batches
  std::vector<std::vector<VirtualBuffer>> persistent;  // by rank, after the last step, in the program's order
  std::vector<std::pair<int, std::string>> printed;    // rank and line
};

// Sums in rank order, whatever the program requests. Throws the kernels' exceptions. Throws plan_error that names the
// waiting ops at a deadlock, which verify also rejects.
VirtualRun run_virtual_ranks(const Job& job, const Device& device, const VirtualOptions& options = {});

}  // namespace prun
