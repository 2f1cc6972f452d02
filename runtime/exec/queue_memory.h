// What a rank has on a queue device: the open device, the program's arena in its memory, and pinned memory of the host
// through which host ops and host transports see tensors.
//
// The arena is as large as the program says, to the byte. Pinned memory, shared by the bodies, which never run at the
// same time: for each stream what its largest host op reads and writes; for each step under way what its first ops
// write (the next batches), its step values and its loss. Beside the arena, for two steps in turn: what their first ops
// write, until the step begins.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/comm.h"
#include "device/queue_device.h"
#include "exec/regions.h"

namespace prun {

inline constexpr int kStepSlots = 3;  // steps that the host may be ahead of the device, and the one under way
inline constexpr int kAhead = 2;      // steps of which a batch is on the device: the one under way and the next

struct QueueOptions {
  int index = 0;        // which of the host's devices
  std::string options;  // the device's, "key=value,..."
};

// How each op of a body is carried out. `enqueues`: the transport works on the device's memory in the order of its
// streams.
std::vector<std::vector<How>> how_of(const Program& program, const Body& body, bool enqueues);
// The pinned memory of a rank of this program, in bytes; each part is aligned.
struct PinnedLayout {
  PinnedLayout(const Program& program, bool enqueues);
  int64_t first = 0;               // of one step
  std::vector<int64_t> by_stream;  // of host ops
  int64_t total = 0;
};

// Where a device's memory has gone, by what it says is free: what other processes take meanwhile is counted as this
// one's.
struct DeviceUse {
  int64_t total = 0;       // that the device has; 0: not known, and so is the rest
  int64_t before = 0;      // contexts, this one's among them, and other processes
  int64_t arena = 0;       // and the next batch
  int64_t transports = 0;  // their buffers, of all communicators
  int64_t kernels = 0;     // machine code, handles of libraries, captured graphs
  int64_t free = 0;        // left
};

class QueueMemory {
 public:
  // Before the world connects: transports may want to know memory that peers reach. Throws what taking it throws.
  QueueMemory(const Program& program, const prun_device& table, const QueueOptions& options, World& world);
  ~QueueMemory();
  QueueMemory(const QueueMemory&) = delete;

  QueueDevice& device() { return *device_; }
  // What the device has less of since the last call was taken by `whom`.
  void account(int64_t DeviceUse::*whom);
  const DeviceUse& use() const { return use_; }
  // Of an error that says that there is no room: the same, with what has taken it and what would help.
  Error explained(const Error& error) const;
  bool enqueues() const { return enqueues_; }
  std::byte* arena() const { return arena_; }
  std::byte* host_arena() const { return host_arena_.get(); }  // pinned; what is offloaded
  // Pinned: where the host sees the tensors of a stream's host ops, one op after the other; of a step's first ops; and
  // a step's values, with the loss kAlignBytes behind them.
  std::byte* staging(int stream) const;
  std::byte* first(int slot) const { return pinned_ + slot * layout_.first; }
  std::byte* ahead(int turn) const { return ahead_.get() + turn * layout_.first; }  // the device's; as first(slot)
  std::byte* values(int slot) const { return pinned_ + kStepSlots * layout_.first + slot * 2 * kAlignBytes; }

 private:
  int64_t free_bytes();

  std::unique_ptr<QueueDevice> device_;
  DeviceUse use_;
  bool enqueues_ = false;
  DeviceMemory own_arena_, host_arena_, ahead_;
  std::byte* arena_ = nullptr;
  PinnedLayout layout_;
  std::byte* pinned_ = nullptr;
};

// Of the tensors that a host op reads and writes, each once: bytes of the host's copies.
int64_t staged_bytes(const Program& program, const Op& op);
// Tensor ids in the order of those copies.
std::vector<TensorId> staged_tensors(const Op& op);

}  // namespace prun
