// prun PLAN --json: what a run came to, as one object on the last line of standard output.
#pragma once
#include <string>

#include "ir/program.h"
#include "launch/failure.h"
#include "watch/steps.h"

namespace prun {

class RunResult {
 public:
  void add(const MergedStep& step);
  void failed(const Failure& failure) { failure_ = failure; }
  void connected(const std::string& transports) { transports_ = transports; }
  std::string text(const Job& job, int exit_code) const;  // without a newline

 private:
  uint64_t steps_ = 0, skipped_ = 0;
  MergedStep first_, last_;
  double seconds_ = 0, evaluation_s_ = 0;
  Failure failure_;
  std::string transports_;
};

}  // namespace prun
