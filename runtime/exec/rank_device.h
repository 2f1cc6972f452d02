// A rank's device: the memory that it computes in, its executor, the account of its memory, and what it adds to an
// error.
//
// Two implementations. Devices whose kernels run where they are called compute in the host's memory (rank_device.cc);
// queue devices (prun/device.h) in their own, with staging memory beside it (queue_memory.h).
#pragma once
#include <memory>
#include <string>

#include "base/error.h"
#include "comm/comm.h"
#include "device/device.h"
#include "exec/job_run.h"

namespace prun {

struct DeviceOptions {
  int index = 0;        // which of the host's devices
  std::string options;  // the device's own, "key=value,..."
};

// Where a device's memory has gone, by what the device says is free. What other processes take meanwhile counts as this
// one's.
struct DeviceUse {
  int64_t total = 0;       // that the device has; 0: not known, and so is the rest
  int64_t before = 0;      // contexts, this one's among them, and other processes
  int64_t arena = 0;       // and the next batch
  int64_t transports = 0;  // their buffers, of all communicators
  int64_t kernels = 0;     // machine code, handles of libraries, captured graphs
  int64_t free = 0;        // left
};

class RankDevice {
 public:
  virtual ~RankDevice() = default;
  virtual std::byte* arena() const = 0;       // of Program::arena_bytes, zeroed when the first body begins
  virtual std::byte* host_arena() const = 0;  // of Program::host_arena_bytes: what is offloaded
  // Whether peers' one-sided messages can write into the arena.
  virtual bool takes_puts() const = 0;
  // Makes all kernels and communicators; `world` is connected. Throws what they throw.
  virtual std::unique_ptr<JobRun> make_executor(World& world, const ExecutorOptions& options) = 0;
  // Adds to an out-of-memory error what has taken the memory and what would help; returns others as they are.
  virtual Error explained(const Error& error) const { return error; }
  // Charges to `whom` what the device has less of since the last call.
  void account(int64_t DeviceUse::*whom);
  const DeviceUse& use() const { return use_; }

 protected:
  virtual int64_t free_bytes() { return 0; }  // sets use_.total; 0 and no total where nobody counts
  DeviceUse use_;
};

// Opens the device for a rank of this program and takes its memory: before `world` connects, since transports may want
// to know memory that peers reach. All arguments outlive the result. Throws what taking memory throws.
std::unique_ptr<RankDevice> open_rank_device(const Device& device, const Program& program, World& world,
                                             const DeviceOptions& options = {});

}  // namespace prun
