// A device makes one kernel for each compute op of a program, over memory that it is given. A kernel is made once, with
// every pointer resolved; running it takes no arguments but the step table and may not allocate.
//
// How a rank takes memory, runs and accounts on a device is RankDevice's (exec/rank_device.h).
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

// The numbers that change from step to step. The executor writes them between steps, kernels read them.
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

// Whether the op's last write is scratch that the memory pass gave it.
inline bool has_workspace(const Program& program, const Op& op) {
  if (op.writes.empty()) return false;
  const Tensor& last = program.tensors[op.writes.back()];
  return last.dtype == Dtype::u8 && program.buffers[last.buffer].role == Role::workspace;
}

// A rank's tensors and its place in the mesh, as kernels see them.
struct RankMemory {
  std::byte* arena = nullptr;
  int rank = 0;
  const Program* program = nullptr;
  const StepTable* table = nullptr;
  std::byte* host_arena = nullptr;
  BodyId body = kStepBody;  // that the kernel belongs to
  // Instead of the arenas: the address of each tensor. For host copies of a queue device's tensors, and for an op that
  // came through prun/device.h; the latter's caller also knows the rank's shares, instead of the program's mesh.
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
  virtual void run() = 0;  // one thread at a time; does not allocate, does not throw for good input
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  // What decides the last bits of its results besides the kernels that a job takes (kernels/cpu/kernel_choice.h): which
  // libraries compute them.
  virtual std::string numerics() const { return std::string(name()); }
  // Bytes of scratch that the op needs while it runs; the memory pass gives it as the op's last write (role workspace,
  // u8). `threads` as in make_kernel: some scratch is per thread. A kernel whose workspace is missing or too small, in
  // a program compiled for another machine, takes memory of its own when it is made.
  virtual int64_t workspace_bytes(const Program& program, const Op& op, int threads = 1) const = 0;
  // `threads`: cores that the kernel may use.
  virtual std::unique_ptr<Kernel> make_kernel(const RankMemory& memory, const Op& op, int threads) const = 0;
  virtual bool supports(const Op& op, const Program& program) const = 0;
  // Whether it computes a fused op of this kind (compile/fuse.cc) faster than its parts one by one.
  virtual bool fuses(std::string_view) const { return false; }
  // The columns of logits are padded to a multiple of it, because products of such widths are faster; 1: they are not.
  virtual int64_t vocabulary_multiple() const { return 1; }
  // The kind of memory that it computes in.
  virtual prun_mem_kind memory_kind() const { return PRUN_MEM_HOST; }
  // The functions of a queue device, which runs what is enqueued; null: kernels compute where they are called. Asked
  // for by who opens the device (open_rank_device, probes, benchmarks), not by who uses it.
  virtual const prun_device* queue() const { return nullptr; }
};

}  // namespace prun
