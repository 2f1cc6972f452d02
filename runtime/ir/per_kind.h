// Remembers a value for each kind of op in a program: a step of a thousand microbatches has as many kinds as one of
// ten. Verify has kinds of its own (verify/op_kinds.h), which span programs and distinguish more.
#pragma once
#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/program.h"

namespace prun {

// Hash and equality of ops by what their cost depends on: definition, phase, attributes, types of operands, role of the
// first output, and whether it is the first operand's memory. Attributes are equal if they share a map (ir/attrs.h).
class CostKind {
 public:
  explicit CostKind(const Program& program) : program_(&program) {}
  size_t hash(const Op& op) const;  // of some of these, because most operands follow from the first
  bool equal(const Op& a, const Op& b) const;

 private:
  bool in_place(const Op& op) const;
  const Program* program_;
};

template <class T>
class PerKind {
 public:
  // The program outlives this and does not change.
  explicit PerKind(const Program& program) : kind_(program) {}

  // Returns the value that `make` has returned for the first op of this kind.
  template <class Make>
  const T& of(const Op& op, const Make& make) {
    std::vector<std::pair<const Op*, T>>& alike = known_[kind_.hash(op)];
    const auto found = std::ranges::find_if(alike, [&](const auto& each) { return kind_.equal(*each.first, op); });
    if (found != alike.end()) return found->second;
    return alike.emplace_back(&op, make()).second;
  }

 private:
  CostKind kind_;
  std::unordered_map<size_t, std::vector<std::pair<const Op*, T>>> known_;  // by hash
};

}  // namespace prun
