// No state is recorded in advance: after a flag is raised, its op is derived from the program.
#include <fmt/format.h>

#include <algorithm>

#include "exec/host_ops.h"
#include "exec/job_run.h"
#include "ir/calendar.h"
#include "ir/ops.h"
#include "ir/order.h"

namespace prun {

NonFinite::NonFinite(std::string message, std::string op, bool from_elsewhere, int64_t at)
    : Error(Exit::non_finite, std::move(message)), op_(std::move(op)) {
  effect = from_elsewhere;
  step = at;
}

namespace {

class RequireFinite final : public Kernel {
 public:
  RequireFinite(const RankMemory& memory, const Op& op)
      : memory_(memory),
        notes_(memory.program->tensors[op.reads[0]]),
        flags_(static_cast<const int32_t*>(memory.data(op.reads[0]))) {}

  void run() override {
    if (std::any_of(flags_, flags_ + notes_.count(), [](int32_t flag) { return flag != 0; })) report();
  }

 private:
  const Tensor& tensor(TensorId id) const { return memory_.program->tensors[id]; }
  int32_t flag(const Op& check) const {
    return flags_[(tensor(check.writes[0]).byte_offset - notes_.byte_offset) / dtype_bytes(Dtype::i32)];
  }

  std::string when() const {
    return (memory_.body == kStepBody ? "at " : "in the ") +
           moment_text(*memory_.program, memory_.body, memory_.table->step);
  }

  bool overlaps(const Tensor& a, const Tensor& b) const {
    return a.buffer == b.buffer && a.byte_offset < b.byte_offset + b.bytes() &&
           b.byte_offset < a.byte_offset + a.bytes();
  }

  // Returns the first op from position `from` of the order that reads `bad` before it is overwritten; null = none here.
  const Op* reader(const Body& body, const Order& order, size_t from, const Tensor& bad) const {
    const auto touches = [&](const std::vector<TensorId>& ids) {
      return std::any_of(ids.begin(), ids.end(), [&](TensorId id) { return overlaps(tensor(id), bad); });
    };
    for (size_t i = from; i < order.sequence().size(); ++i) {
      const OpRef at = order.sequence()[i];
      const Op& op = body.streams[at.stream].ops[at.index];
      if (op.is(ops::check_finite)) continue;
      if (touches(op.reads)) return &op;
      if (touches(op.writes)) return nullptr;
    }
    return nullptr;
  }

  void report() const {
    const Body& here = memory_.program->bodies[memory_.body];
    const Order order(here);
    for (size_t i = 0; i < order.sequence().size(); ++i) {
      const OpRef at = order.sequence()[i];
      const std::vector<Op>& ops = here.streams[at.stream].ops;
      const Op& check = ops[at.index];
      const int32_t kinds = check.is(ops::check_finite) ? flag(check) : 0;
      if (kinds == 0) continue;
      const Op& made = ops[at.index - 1];
      size_t which = 0;
      while ((kinds >> (2 * which) & 3) == 0) ++which;
      const Tensor& bad = tensor(check.reads.at(which));
      const bool nan = (kinds >> (2 * which) & 1) != 0, brought = made.def->op_class != OpClass::compute;
      std::string text = fmt::format("{} {} {} in '{}' {}", op_words(made), brought ? "brings" : "makes",
                                     nan ? "a NaN" : "an infinity", bad.name, when());
      if (const Op* op = reader(here, order, i + 1, bad)) text += fmt::format("; {} reads it", op_words(*op));
      if (memory_.program->schedule.most_skips <= 1)
        throw NonFinite(std::move(text), dump_op(*memory_.program, made), made.communicates(), memory_.table->step);
      if (!made.communicates()) fmt::print(stderr, "prun: rank {}: {}\n", memory_.rank, text);
      return;
    }
    PRUN_CHECK(false, "a flag that no check has written");
  }

  RankMemory memory_;
  const Tensor& notes_;
  const int32_t* flags_;
};

}  // namespace

std::unique_ptr<Kernel> make_require_finite(const RankMemory& memory, const Op& op) {
  return std::make_unique<RequireFinite>(memory, op);
}

}  // namespace prun
