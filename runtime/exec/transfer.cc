#include "exec/transfer.h"

#include <fmt/format.h>

#include <cstring>

namespace prun {
namespace {

class Transfer final : public Kernel {
 public:
  Transfer(const void* from, void* to, int64_t bytes) : from_(from), to_(to), bytes_(static_cast<size_t>(bytes)) {}
  void run() override { std::memcpy(to_, from_, bytes_); }

 private:
  const void* from_;
  void* to_;
  size_t bytes_;
};

}  // namespace

std::unique_ptr<Kernel> make_transfer_kernel(const RankMemory& memory, const Op& op) {
  const int64_t from = memory.program->tensors[op.reads[0]].bytes(),
                to = memory.program->tensors[op.writes[0]].bytes();
  PRUN_CHECK(from == to, fmt::format("{} of {} bytes to {}", op.def->name, from, to));
  return std::make_unique<Transfer>(memory.data(op.reads[0]), memory.data(op.writes[0]), from);
}

}  // namespace prun
