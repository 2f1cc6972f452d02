// prun PLAN --json: the result of a run, as one object on the last line of standard output.
#pragma once
#include <string>

#include "ir/program.h"
#include "launch/failure.h"
#include "watch/steps.h"
#include "watch/view.h"

namespace prun {

class RunResult final : public View {
 public:
  void started(const RunningJob& job) override { job_ = &job; }
  void tick() override;
  void step(const MergedStep& step) override;
  void failed(const Failure& failure) override { failure_ = failure; }
  std::string text(const Job& job, int exit_code) const;  // without a newline

 private:
  uint64_t steps_ = 0, skipped_ = 0;
  MergedStep first_, last_;
  double seconds_ = 0, evaluation_s_ = 0;
  Failure failure_;
  const RunningJob* job_ = nullptr;
  std::string transports_;
};

}  // namespace prun
