// An op of a program in the words of prun/device.h.
#pragma once
#include <vector>

#include "device/device.h"

namespace prun {

class AbiOp {
 public:
  // `memory.arena` null: only sizes are asked for, and all pointers are null. What is passed must outlive this.
  AbiOp(const RankMemory& memory, const Op& op, int threads, const prun_step_values* values = nullptr);
  AbiOp(const AbiOp&) = delete;
  const prun_op& get() const { return op_; }

 private:
  prun_tensor tensor(const RankMemory& memory, int id) const;

  std::vector<prun_tensor> reads_, writes_;
  std::vector<prun_attr> attrs_;
  RankMemory memory_;
  prun_op op_{};
};

// Whether the op's last write is scratch that the memory pass gave it.
bool has_workspace(const Program& program, const Op& op);

}  // namespace prun
