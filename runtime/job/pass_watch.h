// --time-passes and --after PASS: what the compiler's passes take and make.
#pragma once
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "compile/compile.h"

namespace prun {

class PassWatch {
 public:
  // `after`: the pass whose result is to be printed to standard output; "": none.
  explicit PassWatch(std::string after) : after_(std::move(after)) {}
  void add(const PassReport& report);
  void start_over() { text_.clear(); }  // what took time has taken it
  void lap(const char* what);           // what ran since the start, the last lap or the last pass
  // A line for each pass on standard error; the time of a pass is that of all classes of ranks.
  void print_times() const;
  // What the pass has made. Throws usage_error where it did not run for the plan.
  void print_result(const std::string& plan) const;

 private:
  void add_time(std::string_view what, double seconds);

  std::string after_;
  std::string text_;  // of all classes of ranks
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<std::pair<std::string, double>> seconds_;
};

// Throws usage_error, with the likely name, for a name that no pass has.
void check_pass_name(const std::string& name);

}  // namespace prun
