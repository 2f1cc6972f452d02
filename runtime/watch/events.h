// runs/<id>/events.jsonl: what happened to a run, one JSON object a line:
// {"wall_time":1795000000.125,"event":"joined",..}. README.md of tools/prun lists the events.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/writer.h"
#include "launch/failure.h"
#include "watch/view.h"
#include "watch/watchdog.h"

namespace prun {

class Events final : public View {
 public:
  using Write = std::function<void(const std::string& line)>;  // with its newline
  Events(std::string plan, const Watchdog& watchdog, Write write)
      : plan_(std::move(plan)), watchdog_(watchdog), write_(std::move(write)) {}
  void started(const RunningJob& job) override;
  // Ranks that have joined, checkpoints that were begun, committed or failed since the last call.
  void tick() override;
  // No rank makes the checkpoint after `step` steps, since `rank` cannot; the last whole one is that after `last`
  // steps.
  void abandoned(int rank, int64_t step, const std::string& folder, int64_t last,
                 const checkpoint::SaveFailure& failure);
  void step(const MergedStep& step) override;  // if there was an evaluation after it, or it updated nothing
  void warning(const std::string& text) override;
  void failed(const Failure& failure) override;
  void ended(int exit_code, bool begins_again) override;

 private:
  const std::string plan_;
  const Watchdog& watchdog_;
  Write write_;
  size_t skipped_ = 0;
  std::vector<bool> joined_;
  int64_t saving_ = 0, saved_ = 0;  // of rank 0
  std::set<int64_t> abandoned_;     // steps
};

// "hang", "rank crash": the code in words, as RELIABILITY's table has it.
std::string exit_name(int code);

}  // namespace prun
