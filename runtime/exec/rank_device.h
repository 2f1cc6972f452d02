// A rank's device: the memory that it computes in, its executor, its memory accounting, and its explanation of errors.
//
// Devices whose kernels run on the calling thread compute in host memory (rank_device.cc); queue devices
// (prun/device.h) compute in their own, with staging memory on the host (queue_memory.h).
#pragma once
#include <memory>
#include <string>

#include "base/error.h"
#include "comm/comm.h"
#include "device/device.h"
#include "exec/job_run.h"

namespace prun {

struct DeviceOptions {
  int index = 0;        // index among the host's devices
  std::string options;  // options of the device, "key=value,..."
};

// The use of a device's memory in bytes, computed from the device's free memory. Allocations by other processes
// meanwhile count as this one's.
struct DeviceUse {
  int64_t total = 0;       // capacity of the device; 0 = unknown, as are the others
  int64_t before = 0;      // contexts (including this one's) and other processes
  int64_t arena = 0;       // arena and the next batch
  int64_t transports = 0;  // buffers of all communicators
  int64_t kernels = 0;     // machine code, library handles, captured graphs
  int64_t free = 0;        // still free
};

class RankDevice {
 public:
  virtual ~RankDevice() = default;
  virtual std::byte* arena() const = 0;       // Program::arena_bytes, zeroed before the first body
  virtual std::byte* host_arena() const = 0;  // Program::host_arena_bytes, for offloaded tensors
  // Returns whether peers can write into the arena one-sidedly.
  virtual bool takes_puts() const = 0;
  // Makes all kernels and communicators; `world` is connected. Throws their exceptions.
  virtual std::unique_ptr<JobRun> make_executor(World& world, const ExecutorOptions& options) = 0;
  // Adds the users of memory and the remedies to an out-of-memory error; returns other errors unchanged.
  virtual Error explained(const Error& error) const { return error; }
  // Charges `whom` with the decrease of the device's free memory since the last call.
  void account(int64_t DeviceUse::*whom);
  const DeviceUse& use() const { return use_; }

 protected:
  virtual int64_t free_bytes() { return 0; }  // sets use_.total; devices that do not count return 0 and set nothing
  DeviceUse use_;
};

// Opens the device for a rank of this program and allocates its memory. Call before `world` connects, because
// transports may register memory that peers access. All arguments must outlive the result. Throws the allocations'
// exceptions.
std::unique_ptr<RankDevice> open_rank_device(const Device& device, const Program& program, World& world,
                                             const DeviceOptions& options = {});

}  // namespace prun
