// Merges the step records of the ranks: step k is reported once, after every rank has written it.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "exec/recorder.h"

namespace prun {

double wall_time();  // seconds since 1970

struct MergedStep {
  uint64_t step = 0;      // counted from 0
  double loss = 0;        // global loss, from the first rank; NaN: the program has none
  double time_s = 0;      // first rank's time; without gaps, so steps and evaluations sum to the wall time
  double comm_s = 0;      // time in communication ops, mean over the ranks
  double exposed_s = 0;   // time in which compute waited for communication, mean over the ranks
  double bytes_sent = 0;  // mean over the ranks
  double data_s = 0;      // time to take batches, maximum over ranks; 0 on queue devices
  double host_s = 0;      // queue devices: host time to enqueue the step, maximum over ranks; else 0
  double idle_s = 0;      // device idle time before the step, maximum over ranks
  double eval_s = 0;      // time of the evaluation after the step, excluded from time_s; 0: none
  double eval_loss = 0;   // global loss of that evaluation; NaN: none
  std::array<double, kMostNamed> named = {}, eval_named = {};  // by Body::named of the step and of the evaluation
  double norm = 0;       // norm of all gradients before clipping; NaN: not finite, or no clipping
  bool skipped = false;  // the step updated nothing
  double wall_time = 0;  // when the step ended, in seconds since 1970

  bool evaluated() const { return eval_s > 0; }
  MergedStep& operator+=(const MergedStep& other);  // adds times and bytes
};

// Return the names of the numbers that steps and evaluations report besides the loss, in the order of MergedStep's.
std::vector<std::string> step_names(const Program& program);
std::vector<std::string> evaluation_names(const Program& program);

class StepReader {
 public:
  void open(std::vector<RecorderHeader*> recorders) { recorders_ = std::move(recorders); }
  // Ignores ranks after the first `count` from now on: they belong to a lost node.
  void keep_first(size_t count) { recorders_.resize(std::min(count, recorders_.size())); }
  // Returns steps completed since the last call, at most `most`, in order; frees their slots in the rings.
  std::vector<MergedStep> take(uint64_t most = UINT64_MAX);

 private:
  std::vector<RecorderHeader*> recorders_;
  uint64_t next_ = 0;
};

}  // namespace prun
