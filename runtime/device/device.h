// A device: memory is given to it, it makes one kernel for each compute op, and the executor calls them in order.
//
// Surprising fact: a kernel is made once, with every pointer resolved; running it takes no arguments but the step
// table and may not allocate.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "prun/device.h"

namespace prun {

// The numbers that change from step to step; written by the executor between steps, read by kernels.
struct StepTable : prun_step_values {
  StepTable() : prun_step_values{} {}
  void set(const Schedule& schedule, int64_t to) {
    step = to;
    seed = schedule.seed;
    learning_rate = schedule.learning_rate.at(to);
  }
};

// Where a rank's program lives.
struct RankMemory {
  std::byte* arena = nullptr;
  int rank = 0;
  const Program* program = nullptr;
  const StepTable* table = nullptr;
  // Behind prun/device.h there is no arena to be seen: where each tensor lies, and who knows the rank's shares.
  const std::vector<void*>* places = nullptr;
  const prun_op* foreign = nullptr;
  std::byte* host_arena = nullptr;

  void* data(TensorId tensor) const {
    if (places != nullptr) return (*places)[tensor];
    const Tensor& t = program->tensors[tensor];
    return data(program->buffers[t.buffer]) + t.byte_offset;
  }
  std::byte* data(const Buffer& buffer) const {
    return (buffer.space == Space::host ? host_arena : arena) + buffer.offset;
  }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run() = 0;  // one thread at a time; does not allocate, does not throw for good input
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  // Scratch that the op needs while it runs; the memory pass gives it as the op's last write (role workspace, u8).
  // `threads` as in make_kernel: some scratch is per thread. A kernel whose workspace is missing or too small (the
  // program was compiled for another machine) takes memory of its own when it is made.
  virtual int64_t workspace_bytes(const Program& program, const Op& op, int threads = 1) const = 0;
  // `threads`: cores that this kernel may use.
  virtual std::unique_ptr<Kernel> make_kernel(const RankMemory& memory, const Op& op, int threads) const = 0;
  virtual bool supports(const Op& op, const Program& program) const = 0;
  // Whether it computes a fused op of this kind (compile/fuse.cc) faster than its parts one by one.
  virtual bool fuses(std::string_view) const { return false; }
  // The kind of memory that it computes in.
  virtual prun_mem_kind memory_kind() const { return PRUN_MEM_HOST; }
  // The functions of a queue device, which runs what is enqueued; null: kernels compute where they are called. Asked
  // for by who opens the device (open_rank_device, probes, benchmarks), not by who uses it.
  virtual const prun_device* queue() const { return nullptr; }
};

// "cpu", "reference", "cpu-queue", or the name of a plugin; throws usage_error for others, naming the likely one.
std::unique_ptr<Device> open_device(const std::string& name);
std::vector<std::string> device_names();

}  // namespace prun
