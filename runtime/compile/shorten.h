// Shortens a schedule with a periodic steady state: most periods are removed, and the program records how often the
// listed one repeats (ir/repeat.h). Compile and verification time thus do not grow with the number of microbatches.
#pragma once
#include <optional>
#include <vector>

#include "ir/plan.h"
#include "ir/repeat.h"

namespace prun {

struct Shortened {
  Plan plan;                           // with fewer microbatches
  int64_t times = 0;                   // periods removed
  int microbatches = 0;                // per period
  std::vector<Repeat::Span> of_ranks;  // by pipeline rank: slots of the period before the removed ones
  std::vector<Repeat::Span> forward;   // the same span, counted in forward slots only, for evaluations
  int64_t left_out() const { return times * microbatches; }
};

// Removes periods of `microbatches` microbatches. Returns nullopt if too few of them repeat.
std::optional<Shortened> shorten(const Plan& plan, int microbatches);

// Returns the periods to try, in microbatches; a rotation of pool slots may take several.
std::vector<int> periods_of(const Plan& plan);

}  // namespace prun
