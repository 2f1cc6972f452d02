// --trace-steps A:B: the steps that a trace keeps.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

namespace prun {

struct StepWindow {
  int64_t first = 0, last = std::numeric_limits<int64_t>::max();  // from 0, both within
  bool given = false;
  bool holds(int64_t step) const { return step >= first && step <= last; }
};

// "100:200", "100:", ":200" or "100", from 1 as on the screen. Throws usage_error.
StepWindow parse_step_window(const std::string& text, const std::string& option = "--trace-steps");

}  // namespace prun
