// Joins the step records of the local ranks: step k is reported once, when every rank has written it.
#pragma once
#include <cstdint>
#include <vector>

#include "exec/recorder.h"

namespace prun {

struct MergedStep {
  uint64_t step = 0;      // from 0
  double loss = 0;        // the first rank's (all have the global one); NaN: the program has none
  double time_s = 0;      // the first rank's; successive steps and evaluations touch, so the sum is the wall time
  double comm_s = 0;      // time in communication ops, mean over the ranks
  double exposed_s = 0;   // time in which compute waited for communication, mean over the ranks
  double bytes_sent = 0;  // mean over the ranks
  double host_s = 0;      // > 0: a queue device's: the host's work to enqueue the step, the most of any rank
  double idle_s = 0;      // how long the device had nothing to do before the step, the most of any rank
  double eval_s = 0;      // > 0: there was an evaluation after the step, and how long it took; not part of time_s
  double eval_loss = 0;   // the first rank's; NaN: the program has none

  bool evaluated() const { return eval_s > 0; }
};

class StepReader {
 public:
  void open(std::vector<RecorderHeader*> recorders) { recorders_ = std::move(recorders); }
  // The steps that have become complete since the last call, in order; frees their places in the rings.
  std::vector<MergedStep> take();

 private:
  std::vector<RecorderHeader*> recorders_;
  uint64_t next_ = 0;
};

}  // namespace prun
