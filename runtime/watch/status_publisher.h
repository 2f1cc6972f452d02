// Publishes the state for `prun status` twice a second; less often if writing is slow.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "ir/program.h"
#include "watch/run_folder.h"
#include "watch/status_folder.h"
#include "watch/view.h"
#include "watch/watch_spec.h"
#include "watch/watchdog.h"

namespace prun {

class StatusPublisher final : public View {
 public:
  // `run`: the folder of the run; null = none. `warn` receives a sentence if the job cannot be shown; the job
  // continues.
  StatusPublisher(const WatchSpec& spec, const RunFolder* run, Watchdog& watchdog,
                  std::function<void(const std::string&)> warn)
      : spec_(spec), run_(run), watchdog_(watchdog), warn_(std::move(warn)) {}
  void started(const RunningJob& job) override;
  void tick() override;
  void step(const MergedStep& step) override;

 private:
  nlohmann::ordered_json status(const Flight& flight) const;

  const WatchSpec& spec_;
  const RunFolder* run_;
  Watchdog& watchdog_;
  std::function<void(const std::string&)> warn_;
  const RunningJob* job_ = nullptr;
  StatusFolder folder_;
  nlohmann::ordered_json about_;  // constant fields: id, plan, arguments, folder, nodes
  MergedStep latest_, evaluated_;
  uint64_t steps_ = 0, steps_before_ = 0, before_ns_ = 0, next_ns_ = 0;
  double step_s_ = 0;  // mean over the steps since the last publication
};

}  // namespace prun
