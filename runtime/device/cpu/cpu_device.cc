// The table of CPU kernels: kind of op -> its entry, gathered from the families.
#include "device/cpu/cpu_device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include "device/cpu/kernel.h"

namespace prun {
namespace cpu {

Scratch OpView::scratch(int64_t bytes) const {
  Scratch scratch;
  if (bytes == 0) return scratch;
  if (has_workspace()) {
    const int id = op_.writes.back();
    if (memory_.program->tensors[id].bytes() >= bytes) {
      scratch.data = static_cast<std::byte*>(memory_.data(id));
      return scratch;
    }
  }
  scratch.owned.reset(
      static_cast<std::byte*>(std::aligned_alloc(kAlignBytes, static_cast<size_t>(round_up(bytes, kAlignBytes)))),
      [](std::byte* p) { std::free(p); });
  if (scratch.owned == nullptr)
    throw Error(Exit::out_of_memory, fmt::format("no {} bytes for the scratch of {}", bytes, kind()));
  scratch.data = scratch.owned.get();
  return scratch;
}

bool OpView::has_workspace() const {
  if (op_.writes.empty()) return false;
  const Tensor& last = memory_.program->tensors[op_.writes.back()];
  return last.dtype == Dtype::u8 && memory_.program->buffers[last.buffer].role == Role::workspace;
}

const Tensor& OpView::tensor(const std::vector<TensorId>& list, size_t i, const char* word) const {
  PRUN_CHECK(i < list.size(), fmt::format("{} has {} {}, wants {}", kind(), list.size(), word, i + 1));
  return memory_.program->tensors[list[i]];
}

void* OpView::pointer(const std::vector<TensorId>& list, size_t i, Dtype dtype, const char* word) const {
  const Tensor& t = tensor(list, i, word);
  PRUN_CHECK(t.dtype == dtype, fmt::format("{} {} {} '{}' is {}, wants {}", kind(), word, i, t.name,
                                           dtype_name(t.dtype), dtype_name(dtype)));
  return memory_.data(list[i]);
}

void OpView::expect_count(const Tensor& tensor, int64_t count) const {
  PRUN_CHECK(tensor.count() == count,
             fmt::format("{}: '{}' is {}, {} elements wanted", kind(), tensor.name, shape_text(tensor.shape), count));
}

namespace {

const std::map<std::string_view, KernelEntry>& kernels() {
  static const std::map<std::string_view, KernelEntry> table = [] {
    std::map<std::string_view, KernelEntry> all;
    for (const auto& family : {linear_kernels(),
                               activation_kernels(),
                               layernorm_kernels(),
                               rmsnorm_kernels(),
                               rotary_kernels(),
                               attention_kernels(),
                               embedding_kernels(),
                               position_kernels(),
                               cross_entropy_kernels(),
                               split_cross_entropy_kernels(),
                               loss_kernels(),
                               dropout_kernels(),
                               elementwise_kernels(),
                               piece_kernels(),
                               constant_kernels(),
                               init_kernels(),
                               optimizer_kernels(),
                               norm_kernels(),
                               check_finite_kernels(),
                               route_kernels(),
                               dispatch_kernels(),
                               expert_linear_kernels(),
                               attention_block_kernels(),
                               qkv_kernels()}) {
      for (const KernelEntry& entry : family) all[entry.kind] = entry;
    }
    return all;
  }();
  return table;
}

const KernelEntry& entry_of(const Op& op) {
  const auto found = kernels().find(op.def->name);
  PRUN_CHECK(found != kernels().end(), fmt::format("no CPU kernel for {}", op.def->name));
  return found->second;
}

class CpuDevice final : public Device {
 public:
  std::string_view name() const override { return "cpu"; }

  int64_t workspace_bytes(const Program& program, const Op& op, int threads) const override {
    RankMemory memory;
    memory.program = &program;
    return supports(op, program) ? cpu_workspace_bytes(memory, op, threads) : 0;
  }

  std::unique_ptr<Kernel> make_kernel(const RankMemory& memory, const Op& op, int threads) const override {
    return entry_of(op).make(OpView(memory, op, threads));
  }

  // Not products with their gelus: those are passes over what the cache holds, and gain nothing here.
  bool fuses(std::string_view kind) const override {
    return kind == "cross_entropy_and_grad" || kind == "adamw_cast" || kind == "sgd_cast";
  }

  bool supports(const Op& op, const Program& program) const override {
    const auto found = kernels().find(op.def->name);
    if (found == kernels().end()) return false;
    const bool integers_too = found->second.accepts == Accepts::numbers;
    const auto fits = [&](int id) {
      switch (program.tensors[id].dtype) {
        case Dtype::f32:
        case Dtype::bf16:
          return true;
        case Dtype::f64:
          return integers_too;
        case Dtype::i64:
        case Dtype::i32:
          return true;  // tokens and counts; a kernel checks where they stand
        case Dtype::u8:
          return program.buffers[program.tensors[id].buffer].role == Role::workspace;
        default:
          return false;
      }
    };
    for (int id : op.reads) {
      if (!fits(id)) return false;
    }
    for (int id : op.writes) {
      if (!fits(id)) return false;
    }
    return true;
  }
};

}  // namespace
}  // namespace cpu

int64_t cpu_workspace_bytes(const RankMemory& memory, const Op& op, int threads) {
  const auto found = cpu::kernels().find(op.def->name);
  if (found == cpu::kernels().end() || found->second.workspace == nullptr) return 0;
  return round_up(found->second.workspace(cpu::OpView(memory, op, threads)), kAlignBytes);
}

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<cpu::CpuDevice>(); }

}  // namespace prun
