// A rank's queue device: the open device, the program's arena in its memory, and pinned host memory through which host
// ops and host transports access tensors.
//
//     pinned   per slot: first ops' outputs (next batch) | per slot: step values, loss, norm | per stream: host op
//              | per tensor: counts
//     device   arena, of exactly the program's size      | per slot: uploaded batch, until its step begins
//
// Bodies share the pinned memory, because they never run concurrently.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/queue_device.h"
#include "exec/rank_device.h"
#include "exec/regions.h"

namespace prun {

inline constexpr int64_t kMostResults = 64;  // of a body
inline constexpr int64_t kValueBytes = 2 * kAlignBytes + kMostResults * 8;

inline constexpr int kStepSlots = 3;  // steps that the host may be ahead of the device, plus the current one

// Returns where each op of a body runs. `enqueues`: whether the transport works on the device's memory in stream order.
Table<StreamId, std::vector<How>> how_of(const Program& program, const Body& body, bool enqueues);
// Sizes of a rank's pinned memory, in bytes; each part is aligned.
struct PinnedLayout {
  PinnedLayout(const Program& program, bool enqueues);
  int64_t first = 0;                   // first ops' outputs of one step
  std::vector<int64_t> by_stream;      // staging of a host op, by stream
  std::map<TensorId, int64_t> counts;  // offsets of the counts of counted ops
  int64_t total = 0;
};

class QueueMemory final : public RankDevice {
 public:
  QueueMemory(const Program& program, const prun_device& table, const DeviceOptions& options, World& world);
  ~QueueMemory() override;
  QueueMemory(const QueueMemory&) = delete;

  std::byte* arena() const override { return arena_; }
  std::byte* host_arena() const override { return host_arena_.get(); }  // pinned
  bool takes_puts() const override { return false; }
  std::unique_ptr<JobRun> make_executor(World& world, const ExecutorOptions& options) override;
  Error explained(const Error& error) const override;

  QueueDevice& device() { return *device_; }
  bool enqueues() const { return enqueues_; }
  // Pinned memory. staging: host copies of a stream's host op's tensors; first: outputs of a step's first ops; values:
  // a step's values, followed by the loss after kAlignBytes, followed by the gradient norm, followed by the named
  // numbers' results after another kAlignBytes.
  std::byte* staging(StreamId stream) const;
  std::byte* first(int slot) const { return pinned_ + slot * layout_.first; }
  // Returns the pinned copy of counts.
  std::byte* counts(TensorId id) const { return pinned_ + layout_.counts.at(id); }
  // Returns the uploaded batch on the device, laid out as first(slot).
  std::byte* ahead(int slot) const { return ahead_.get() + slot * layout_.first; }
  std::byte* values(int slot) const { return pinned_ + kStepSlots * layout_.first + slot * kValueBytes; }

 private:
  int64_t free_bytes() override;

  const Program& program_;
  std::unique_ptr<QueueDevice> device_;
  bool enqueues_ = false;
  DeviceMemory own_arena_, host_arena_, ahead_;
  std::byte* arena_ = nullptr;
  PinnedLayout layout_;
  std::byte* pinned_ = nullptr;
};

// Returns the tensors that a host op reads and writes, each once, in the order of their host copies.
std::vector<TensorId> staged_tensors(const Program& program, const Op& op);
// Returns the bytes of these host copies.
int64_t staged_bytes(const Program& program, const Op& op);

}  // namespace prun
