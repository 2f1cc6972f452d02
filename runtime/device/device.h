// A device makes one kernel for each compute op of a program, over memory that it is given. A kernel is made once, with
// every pointer resolved; running it takes no arguments but the step table and may not allocate.
//
// RankDevice (exec/rank_device.h) allocates a rank's memory on a device, and runs and accounts there.
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

// Values that change from step to step. The executor writes them between steps, kernels read them.
struct StepTable : prun_step_values {
  StepTable() : prun_step_values{} {}
  int64_t skipped = 0;  // steps before `step` that updated nothing
  void set(const Schedule& schedule, int64_t to) {
    step = to;
    update = to - skipped;
    seed = schedule.seed;
    learning_rate = schedule.learning_rate.at(to);
  }
};

// Returns whether the op's last write is scratch that the memory pass allocated.
inline bool has_workspace(const Program& program, const Op& op) {
  if (op.writes.empty()) return false;
  const Tensor& last = program.tensors[op.writes.back()];
  return last.dtype == Dtype::u8 && program.buffers[last.buffer].role == Role::workspace;
}

// A rank's tensors and its place in the mesh, as kernels use them.
struct RankMemory {
  std::byte* arena = nullptr;
  int rank = 0;
  const Program* program = nullptr;
  const StepTable* table = nullptr;
  std::byte* host_arena = nullptr;
  BodyId body = kStepBody;  // the body that the kernel belongs to
  // Addresses by tensor, instead of the arenas: for host copies of a queue device's tensors, and for an op that came
  // through prun/device.h. In the latter case `caller` supplies the rank's shares instead of the program's mesh.
  const Table<TensorId, void*>* tensors = nullptr;
  const prun_op* caller = nullptr;

  void* data(TensorId tensor) const {
    if (tensors != nullptr) return (*tensors)[tensor];
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
  virtual void run() = 0;  // one thread at a time; neither allocates nor throws for valid input
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  // Returns the libraries that compute, which determine the rounding of results together with the job's kernels
  // (kernels/cpu/kernel_choice.h).
  virtual std::string numerics() const { return std::string(name()); }
  // Returns the bytes of scratch that the op needs while it runs; the memory pass allocates them as the op's last write
  // (role workspace, u8). `threads` as for make_kernel, because some scratch is per thread. A kernel whose workspace is
  // missing or too small, in a program compiled for another machine, allocates its own when it is made.
  virtual int64_t workspace_bytes(const Program& program, const Op& op, int threads = 1) const = 0;
  // `threads`: cores that the kernel may use.
  virtual std::unique_ptr<Kernel> make_kernel(const RankMemory& memory, const Op& op, int threads) const = 0;
  virtual bool supports(const Op& op, const Program& program) const = 0;
  // Returns whether it computes a fused op of this kind (compile/fuse.cc) faster than its parts one by one.
  virtual bool fuses(std::string_view) const { return false; }
  // Returns the multiple to which columns of logits are padded, because GEMMs of such widths are faster; 1 = no
  // padding.
  virtual int64_t vocabulary_multiple() const { return 1; }
  // Returns the kind of memory that it computes in.
  virtual prun_mem_kind memory_kind() const { return PRUN_MEM_HOST; }
  // Returns the functions of a queue device, which runs enqueued work; null: kernels run on the calling thread. Used by
  // code that opens the device (open_rank_device, probes, benchmarks), not by its users.
  virtual const prun_device* queue() const { return nullptr; }
};

}  // namespace prun
