// The figures that stand above a drawing: how long a step takes, how busy compute is, what communication it waits for.
#pragma once
#include <string>
#include <vector>

#include "draw/timeline.h"

namespace prun::draw {

struct Figures {
  int steps = 0;
  int64_t step_ns = 0;            // mean; of a schedule in units of cost as unit_ns says
  double busy = 0;                // of the compute streams' time, mean over ranks
  double communicating = 0;       // part of the time in which a rank communicates
  double exposed = 0;             // and computes nothing meanwhile
  std::vector<int64_t> critical;  // as critical_shares()
  int64_t peak_bytes = 0;         // of the rank with the most; 0: not known
};

Figures figures_of(const Timeline& timeline);

// "12.3 ms", or of a schedule without seconds "3.5 F": forwards of a microbatch.
std::string time_text(const Timeline& timeline, int64_t ns);
// "71 % forward, 12 % all-gather, 17 % waiting": the largest three.
std::string critical_text(const Figures& figures);

}  // namespace prun::draw
