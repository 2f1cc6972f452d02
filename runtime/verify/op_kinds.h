// Ops that differ only in which tensors they touch are of one kind: what a rule has found of one of them, from its
// attributes and the types of its operands, holds for all. A model of a thousand equal layers has as many kinds as one
// of ten.
#pragma once
#include <string>
#include <unordered_map>

#include "ir/program.h"

namespace prun::verify {

class OpKinds {
 public:
  // The number of the op's kind, from 0: its row, attributes and axis, the types of what it reads and writes, and which
  // of these are the same tensor.
  int of(const Program& program, const Op& op);
  int count() const { return kinds_.size(); }

 private:
  std::unordered_map<std::string, int> kinds_;
  std::string key_;  // of the op that is looked at
};

}  // namespace prun::verify
