// --time-passes and --after PASS: times and results of the compiler's passes.
#pragma once
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "compile/compile.h"

namespace prun {

class PassWatch {
 public:
  // `after`: the pass whose result is printed to standard output; "": none.
  explicit PassWatch(std::string after) : after_(std::move(after)) {}
  void add(const PassReport& report);
  void start_over() { text_.clear(); }  // discards results but keeps times
  void lap(const char* what);           // adds the time since the start, the last lap or the last pass
  // Prints a line per pass to standard error; the time of a pass covers all classes of ranks.
  void print_times() const;
  // Prints the pass's result. Throws usage_error if it did not run for the plan.
  void print_result(const std::string& plan) const;

 private:
  void add_time(std::string_view what, double seconds);

  std::string after_;
  std::string text_;  // results for all classes of ranks
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<std::pair<std::string, double>> seconds_;
};

// Throws usage_error with the likely name if no pass has this name.
void check_pass_name(const std::string& name);

}  // namespace prun
