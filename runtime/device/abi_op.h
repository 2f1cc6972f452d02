// An op of a program as the prun_op of prun/device.h.
#pragma once
#include <vector>

#include "device/device.h"

namespace prun {

class AbiOp {
 public:
  // Without memory.arena and memory.tensors all pointers are null, for queries of sizes. All arguments must outlive
  // this. `options` are the device's.
  AbiOp(const RankMemory& memory, const Op& op, int threads, const prun_step_values* values = nullptr,
        const char* options = "");
  AbiOp(const AbiOp&) = delete;
  const prun_op& get() const { return op_; }

 private:
  prun_tensor tensor(const RankMemory& memory, TensorId id) const;

  std::vector<prun_tensor> reads_, writes_;
  std::vector<prun_attr> attrs_;
  RankMemory memory_;
  prun_op op_{};
};

}  // namespace prun
