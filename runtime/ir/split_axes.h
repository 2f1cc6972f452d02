// The axes over which a parameter is split: one, or two as "ep,tp": the ranks of the first have equal parts of dim 0,
// such as experts, and those of the second a part of `split_dim` of it.
#pragma once
#include <string>

namespace prun {

struct SplitAxes {
  std::string part, split;  // "" = none
  explicit SplitAxes(const std::string& axes) {
    const size_t comma = axes.find(',');
    if (comma != std::string::npos) part = axes.substr(0, comma);
    split = comma == std::string::npos ? axes : axes.substr(comma + 1);
  }
  bool has(const std::string& axis) const { return !axis.empty() && (axis == part || axis == split); }
  // The axis that divides dim 0 first.
  const std::string& outer() const { return part.empty() ? split : part; }
};

}  // namespace prun
