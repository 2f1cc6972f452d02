// A kernel of the CPU device made from a prun_op: the op as a program of its own.
#pragma once
#include <memory>

#include "device/device.h"

namespace prun::cpu_queue {

class OneOp {
 public:
  // Throws Error(plan) for kinds, types and attributes that prun does not support.
  explicit OneOp(const prun_op& op);
  OneOp(const OneOp&) = delete;

  bool supported() const;
  int64_t workspace_bytes() const;
  std::unique_ptr<Kernel> make() const;  // holds references to this OneOp

 private:
  int add(const prun_tensor& tensor, Role role);

  Program program_;
  Op op_;
  RankMemory memory_;
  Table<TensorId, void*> addresses_;
  prun_op caller_;
  int threads_;
};

}  // namespace prun::cpu_queue
