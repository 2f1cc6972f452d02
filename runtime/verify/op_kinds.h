// Ops that differ only in the identity of their tensors are of one kind, so a result derived from attributes and
// operand types holds for all of them. A model of a thousand equal layers has as many kinds as one of ten.
#pragma once
#include <string>
#include <unordered_map>

#include "ir/program.h"

namespace prun::verify {

class OpKinds {
 public:
  // Returns the kind of the op, numbered from 0. The kind is its definition, attributes and axis, the types of its
  // operands, and which operands are the same tensor.
  int of(const Program& program, const Op& op);
  int count() const { return kinds_.size(); }

 private:
  std::unordered_map<std::string, int> kinds_;
  std::string key_;  // scratch of `of`
};

}  // namespace prun::verify
