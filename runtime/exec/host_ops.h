// Ops that the host runs on every device: the next batch, print, and copies between the host's arenas.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/device.h"
#include "exec/checkpoint_ops.h"
#include "exec/feed_cursors.h"
#include "exec/generation_ops.h"

namespace prun {

// First character of a rank's line that goes to --metrics or events.jsonl instead of the user.
inline constexpr char kForMetrics = '\x1e';
inline constexpr char kForEvents = '\x1d';

struct HostServices {
  std::function<void(const std::string&)> print;  // receives a whole line
  std::function<bool()> cancelled;                // whether the job is ending; null = it never is
  std::shared_ptr<FeedCursors> cursors;           // null = no checkpoint needs them
  std::shared_ptr<CheckpointServices> checkpoints;
  std::string predictions;  // the file of a prediction (prediction_file.h); "" = the job makes none
  std::shared_ptr<GenerationServices> generation;  // null: the job trains
};

// run() throws Error for data that the plan cannot use (a token outside the vocabulary).
std::unique_ptr<Kernel> make_host_kernel(const RankMemory& memory, const Op& op, const HostServices& services);

// Returns a kernel for any op but communication on a device that computes in host memory: the device's own for compute,
// copies between the arenas for load and store. Aborts for a lowered op, which has no kernel.
std::unique_ptr<Kernel> make_local_kernel(const Device& device, const RankMemory& memory, const Op& op,
                                          const HostServices& services, int threads);

// Returns "[1, 2, 3]", nested for more dims; if limit >= 0, the first `limit` elements of the flattened tensor.
std::string tensor_text(const Tensor& tensor, const void* data, int64_t limit = -1);

// Throws usage_error if a data file is missing or has changed; so does run() if that happens later, or if an id is
// outside the vocabulary.
std::unique_ptr<Kernel> make_next_batch(const RankMemory& memory, const Op& op, const HostServices& services);

// run() throws Error(corrupt_link) for the first tensor whose fingerprints differ along the op's axis; it names the
// tensor, the ranks and the step.
std::unique_ptr<Kernel> make_require_same(const RankMemory& memory, const Op& op);

// A NaN or an infinity. The message names the op that made it and the one that reads it; op() is the former, with its
// tensors. It is an effect, not the cause, if it came from another rank.
class NonFinite : public Error {
 public:
  NonFinite(std::string message, std::string op, bool from_elsewhere, int64_t step);
  const std::string& op() const { return op_; }

 private:
  std::string op_;
};

// run() throws NonFinite for the first op in program order that wrote a non-finite value; if such steps update nothing
// and the run continues (Schedule::most_skips), it reports on standard error instead.
std::unique_ptr<Kernel> make_require_finite(const RankMemory& memory, const Op& op);

}  // namespace prun
