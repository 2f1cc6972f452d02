// What the launcher shows of a running job: reads the flight recorders of the local ranks, never asks a rank.
#pragma once
#include <vector>

#include "exec/recorder.h"
#include "ir/program.h"
#include "launch/launch.h"
#include "options.h"

namespace prun {

class Observer final : public LaunchObserver {
 public:
  explicit Observer(const Options& options) : options_(options) {}
  static uint64_t recorder_capacity(const Options& options) { return options.trace.empty() ? 1u << 12 : 1u << 16; }
  void started(const std::vector<int>& ranks, const std::vector<int>& pids, const std::vector<void*>& recorders) override;
  void tick() override;
  void line(int rank, const std::string& text) override;
  std::string where(int rank) override;
  void finish(int exit_code);

  Job job;  // empty on nodes other than 0

 private:
  const Options& options_;
  std::vector<int> ranks_;
  std::vector<RecorderHeader*> recorders_;
};

}  // namespace prun
