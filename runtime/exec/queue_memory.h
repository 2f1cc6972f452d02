// What a rank has on a queue device: the open device, the program's arena in its memory, and pinned memory of the host
// through which host ops and host transports see tensors.
//
// The arena is as large as the program says, to the byte. Pinned memory: for each stream what its largest host op reads
// and writes, three times what the first ops of a step write (the next batches), and a slot for each step under way.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "device/queue_device.h"
#include "exec/regions.h"

namespace prun {

inline constexpr int kStepSlots = 3;  // steps that the host may be ahead of the device, and the one under way

struct QueueOptions {
  int index = 0;        // which of the host's devices
  std::string options;  // the device's, "key=value,..."
};

// How each op of a body is carried out. `enqueues`: the transport works on the device's memory in the order of its
// streams.
std::vector<std::vector<How>> how_of(const Program& program, const Body& body, bool enqueues);
// Bytes of pinned memory that a rank of this program takes.
int64_t pinned_bytes(const Program& program, bool enqueues);

class QueueMemory {
 public:
  // Before the world connects: transports may want to know memory that peers reach. Throws what taking it throws.
  QueueMemory(const Program& program, const prun_device& table, const QueueOptions& options, World& world);
  ~QueueMemory();
  QueueMemory(const QueueMemory&) = delete;

  QueueDevice& device() { return *device_; }
  bool enqueues() const { return enqueues_; }
  std::byte* arena() const { return arena_; }
  // The next `bytes` of pinned memory, aligned; in the order in which pinned_bytes counts them.
  std::byte* take_pinned(int64_t bytes);

 private:
  std::unique_ptr<QueueDevice> device_;
  bool enqueues_ = false;
  DeviceMemory own_arena_;
  std::byte* arena_ = nullptr;
  std::byte* pinned_ = nullptr;
  int64_t pinned_bytes_ = 0, taken_ = 0;
};

// Of the tensors that a host op reads and writes, each once: bytes of the host's copies.
int64_t staged_bytes(const Program& program, const Op& op);
// Tensor ids in the order of those copies.
std::vector<int> staged_tensors(const Op& op);

}  // namespace prun
