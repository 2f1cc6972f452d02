// Ops that the host runs on every device: the next batch, print, and copies between its arenas.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "device/device.h"
#include "exec/checkpoint_ops.h"
#include "exec/generation_ops.h"

namespace prun {

// Begins a line of a rank that is meant for --metrics or for events.jsonl, not for the user.
inline constexpr char kForMetrics = '\x1e';
inline constexpr char kForEvents = '\x1d';

struct HostServices {
  std::function<void(const std::string&)> print;  // a whole line
  std::shared_ptr<CheckpointServices> checkpoints;
  std::shared_ptr<GenerationServices> generation;  // null: the job trains
};

// run() throws Error on data that the plan cannot use (a token outside the vocabulary).
std::unique_ptr<Kernel> make_host_kernel(const RankMemory& memory, const Op& op, const HostServices& services);

// A kernel for any op but communication where the device computes in the host's memory: its own for compute, copies
// from one arena to the other for load and store. A lowered op has no kernel: aborts.
std::unique_ptr<Kernel> make_local_kernel(const Device& device, const RankMemory& memory, const Op& op,
                                          const HostServices& services, int threads);

// "[1, 2, 3]", nested for more dims; the first `limit` elements of the flattened tensor when limit >= 0.
std::string tensor_text(const Tensor& tensor, const void* data, int64_t limit = -1);

}  // namespace prun
