// Faults that --chaos injects into a rank's kernels: a skipped collective, a gradient that becomes NaN.
#include <limits>
#include <utility>

#include "device/element.h"
#include "exec/chaos.h"

namespace prun {
namespace {

class Omitting final : public Kernel {
 public:
  Omitting(std::unique_ptr<Kernel> kernel, Omission omission)
      : kernel_(std::move(kernel)), omission_(std::move(omission)) {}
  void run() override {
    if (!omission_->exchange(false)) kernel_->run();
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  Omission omission_;
};

class Poisoned final : public Kernel {
 public:
  Poisoned(std::unique_ptr<Kernel> kernel, const RankMemory& memory, TensorId written, Poison poison)
      : kernel_(std::move(kernel)),
        dtype_(memory.program->tensors[written].dtype),
        data_(memory.data(written)),
        poison_(std::move(poison)) {}
  void run() override {
    kernel_->run();
    if (poison_->exchange(false)) store_element(dtype_, data_, 0, std::numeric_limits<double>::quiet_NaN());
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  Dtype dtype_;
  void* data_;
  Poison poison_;
};

}  // namespace

std::unique_ptr<Kernel> omitting(std::unique_ptr<Kernel> kernel, Omission omission) {
  return std::make_unique<Omitting>(std::move(kernel), std::move(omission));
}

const Op* poisoned_op(const Program& program) {
  for (const Stream& stream : program.step().streams)
    for (const Op& op : stream.ops)
      if (op.phase == Phase::backward && op.def->op_class == OpClass::compute && !op.writes.empty() &&
          op.def->role == OpRole::derivative && computes(program.tensors[op.writes[0]].dtype))
        return &op;
  return nullptr;
}

std::unique_ptr<Kernel> poisoned(std::unique_ptr<Kernel> kernel, const RankMemory& memory, const Op& op,
                                 Poison poison) {
  return std::make_unique<Poisoned>(std::move(kernel), memory, op.writes[0], std::move(poison));
}

}  // namespace prun
