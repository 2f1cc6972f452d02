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
#include "watch/rank_watch.h"
#include "watch/steps.h"

namespace prun {

class Events {
 public:
  using Write = std::function<void(const std::string& line)>;  // with its newline
  explicit Events(Write write) : write_(std::move(write)) {}
  void started(const std::string& plan, const std::vector<WatchedRank>& ranks);
  // Ranks that have joined, checkpoints that were begun, committed or failed since the last call.
  void look_at(const std::vector<WatchedRank>& ranks);
  // No rank makes the checkpoint after `step` steps, since `rank` cannot; the last whole one is that after `last`
  // steps.
  void abandoned(int rank, int64_t step, const std::string& folder, int64_t last,
                 const checkpoint::SaveFailure& failure);
  void step(const MergedStep& step);                    // if there was an evaluation after it
  void skipped(const MergedStep& step, size_t so_far);  // the step updated nothing
  void warning(const std::string& text);
  void failed(const Failure& failure);
  void ended(int exit_code);

 private:
  Write write_;
  std::vector<bool> joined_;
  int64_t saving_ = 0, saved_ = 0;  // of rank 0
  std::set<int64_t> abandoned_;     // steps
};

// "hang", "rank crash": the code in words, as RELIABILITY's table has it.
std::string exit_name(int code);

}  // namespace prun
