// A schedule whose middle does for microbatch after microbatch the same is compiled with most of it left out, and the
// program says how often it repeats (ir/repeat.h). So what a plan costs to compile and to prove does not grow with its
// microbatches.
#pragma once
#include <optional>
#include <vector>

#include "ir/plan.h"
#include "ir/repeat.h"

namespace prun {

struct Shortened {
  Plan plan;                           // with fewer microbatches
  int64_t times = 0;                   // periods that were left out
  int microbatches = 0;                // of a period
  std::vector<Repeat::Span> of_ranks;  // by rank of the pipeline: the turns behind which they were
  std::vector<Repeat::Span> forward;   // the same among forward turns alone, which an evaluation has
  int64_t left_out() const { return times * microbatches; }
};

// Periods of so many microbatches are left out. Nullopt: there are none, or fewer than is worth it.
std::optional<Shortened> shorten(const Plan& plan, int microbatches);

// The periods to try, in microbatches: slots of pools may go round in more than one.
std::vector<int> periods_of(const Plan& plan);

}  // namespace prun
