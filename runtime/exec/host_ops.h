// Ops that the host runs on every device: the next batch, print, and copies between its arenas.
#pragma once
#include <cstdint>
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

// Throws usage_error when a file of the data is gone or has changed; so does run(), where it happens later, and where
// an id is not in the vocabulary.
std::unique_ptr<Kernel> make_next_batch(const RankMemory& memory, const Op& op);

// run() throws Error(corrupt_link) for the first tensor whose fingerprints differ along the op's axis: its name, the
// ranks, the step.
std::unique_ptr<Kernel> make_require_same(const RankMemory& memory, const Op& op);

// A NaN or an infinity. The message names the op that made it and the one that reads it; op() shows the former with its
// tensors. It is an effect, not the cause, if it came from another rank.
class NonFinite : public Error {
 public:
  NonFinite(std::string message, std::string op, bool from_elsewhere, int64_t step);
  const std::string& op() const { return op_; }

 private:
  std::string op_;
};

// run() throws NonFinite for the first op in program order that wrote a value that is not finite; where such steps
// update nothing and the run goes on (Schedule::most_skips), it says so on standard error.
std::unique_ptr<Kernel> make_require_finite(const RankMemory& memory, const Op& op);

}  // namespace prun
