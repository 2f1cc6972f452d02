// The table of CPU kernels: kind of op -> its entry, collected from the families.
#include "kernels/cpu/cpu_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "base/text.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/kernel.h"

namespace prun {
namespace cpu {

Scratch OpView::scratch(int64_t bytes) const {
  Scratch scratch;
  if (bytes == 0) return scratch;
  if (has_workspace(program(), op_)) {
    const TensorId id = op_.writes.back();
    if (memory_.program->tensors[id].bytes() >= bytes) {
      scratch.data = static_cast<std::byte*>(memory_.data(id));
      return scratch;
    }
  }
  scratch.owned.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignBytes, round_up(bytes, kAlignBytes))),
                      [](std::byte* p) { std::free(p); });
  if (scratch.owned == nullptr)
    throw Error(Exit::out_of_memory, fmt::format("no {} bytes for the scratch of {}", bytes, kind()));
  scratch.data = scratch.owned.get();
  return scratch;
}

const Tensor& OpView::tensor(const std::vector<TensorId>& list, size_t i, const char* word) const {
  PRUN_CHECK(i < list.size(), fmt::format("{} has {} {}, expects {}", kind(), list.size(), word, i + 1));
  return memory_.program->tensors[list[i]];
}

void* OpView::pointer(const std::vector<TensorId>& list, size_t i, Dtype dtype, const char* word) const {
  const Tensor& t = tensor(list, i, word);
  PRUN_CHECK(t.dtype == dtype, fmt::format("{} {} {} '{}' is {}, expected {}", kind(), word, i, t.name,
                                           dtype_name(t.dtype), dtype_name(dtype)));
  return memory_.data(list[i]);
}

void OpView::expect_count(const Tensor& tensor, int64_t count) const {
  PRUN_CHECK(tensor.count() == count,
             fmt::format("{}: '{}' is {}, {} elements wanted", kind(), tensor.name, shape_text(tensor.shape), count));
}

namespace {

// Returns the kernel of an op; null = none.
const KernelEntry* find_kernel(const Op& op) {
  static const std::unordered_map<const OpDef*, KernelEntry> table = [] {
    std::unordered_map<const OpDef*, KernelEntry> all;
#define PRUN_ADD(name) \
  for (const KernelEntry& entry : name##_kernels) all[&op_def(entry.kind)] = entry;
    PRUN_CPU_FAMILIES(PRUN_ADD)
#undef PRUN_ADD
    return all;
  }();
  const auto found = table.find(op.def);
  return found == table.end() ? nullptr : &found->second;
}

const KernelEntry& entry_of(const Op& op) {
  const KernelEntry* found = find_kernel(op);
  PRUN_CHECK(found != nullptr, fmt::format("no CPU kernel for {}", op.def->name));
  return *found;
}

class CpuDevice final : public Device {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string numerics() const override { return "cpu: " + gemm_library(); }

  int64_t workspace_bytes(const Program& program, const Op& op, int threads) const override {
    const KernelEntry* found = find_kernel(op);
    if (found == nullptr || found->workspace == nullptr || !supports(op, program)) return 0;
    RankMemory memory;
    memory.program = &program;
    return cpu_workspace_bytes(memory, op, threads);
  }

  std::unique_ptr<Kernel> make_kernel(const RankMemory& memory, const Op& op, int threads) const override {
    return entry_of(op).make(OpView(memory, op, threads));
  }

  // Fusing a gelu into its GEMM gains nothing here, because the separate pass reads from the cache.
  bool fuses(std::string_view kind) const override {
    return kind == "cross_entropy_and_grad" || kind == "adamw_cast" || kind == "sgd_cast";
  }

  bool supports(const Op& op, const Program& program) const override {
    const KernelEntry* found = find_kernel(op);
    if (found == nullptr) return false;
    const Accepts accepts = found->accepts;
    const auto fits = [&](TensorId id, bool written) {
      switch (program.tensors[id].dtype) {
        case Dtype::f32:
        case Dtype::bf16:
        case Dtype::i64:
        case Dtype::i32:
          return true;  // integers are tokens and counts; the kernel checks which operands they are
        case Dtype::f64:
          return accepts == Accepts::numbers ||
                 ((accepts == Accepts::wide_sums || (accepts == Accepts::wide_result && written)) &&
                  program.tensors[id].count() == 1);
        case Dtype::u8:
          return program.buffers[program.tensors[id].buffer].role == Role::workspace;
        default:
          return false;
      }
    };
    return std::all_of(op.reads.begin(), op.reads.end(), [&](TensorId id) { return fits(id, false); }) &&
           std::all_of(op.writes.begin(), op.writes.end(), [&](TensorId id) { return fits(id, true); });
  }
};

}  // namespace
}  // namespace cpu

int64_t cpu_workspace_bytes(const RankMemory& memory, const Op& op, int threads) {
  const cpu::KernelEntry* found = cpu::find_kernel(op);
  if (found == nullptr || found->workspace == nullptr) return 0;
  return round_up(found->workspace(cpu::OpView(memory, op, threads)), kAlignBytes);
}

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<cpu::CpuDevice>(); }

}  // namespace prun
