// runs/<id>/events.jsonl: the events of a run, one JSON object a line:
// {"wall_time":1795000000.125,"event":"joined",..}. README.md of tools/prun lists them.
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
  using Write = std::function<void(const std::string& line)>;  // receives a line with its newline
  Events(std::string plan, const Watchdog& watchdog, Write write)
      : plan_(std::move(plan)), watchdog_(watchdog), write_(std::move(write)) {}
  void started(const RunningJob& job) override;
  // Writes joined ranks, and checkpoints begun, committed or failed since the last call.
  void tick() override;
  // All ranks drop the checkpoint after `step` steps because `rank` failed to write it. `last`: step of the newest
  // whole checkpoint.
  void abandoned(int rank, int64_t step, const std::string& folder, int64_t last,
                 const checkpoint::SaveFailure& failure);
  void before_steps(const MergedStep& evaluation) override { evaluated(0, evaluation); }
  void step(const MergedStep& step) override;  // after an evaluation, or if it updated nothing
  void warning(const std::string& text) override;
  void failed(const Failure& failure) override;
  void ended(int exit_code, bool begins_again) override;

 private:
  void evaluated(int64_t after, const MergedStep& evaluation);  // `after`: number of completed steps

  const std::string plan_;
  const Watchdog& watchdog_;
  Write write_;
  size_t skipped_ = 0;
  std::vector<std::string> eval_named_;
  std::vector<bool> joined_;
  int64_t saving_ = 0, saved_ = 0;  // rank 0's steps in RecorderHeader
  std::set<int64_t> abandoned_;     // steps
};

// Returns the name of an exit code, as in the table of exit codes: "hang", "rank crash".
std::string exit_name(int code);

}  // namespace prun
