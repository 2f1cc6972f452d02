// Two runs side by side: all ranks of a job, and one rank that trained the same.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "exec/virtual_ranks.h"
#include "prove/trained_state.h"

namespace prun {

inline constexpr double kMostDifference = 1e-12;  // of the largest number of its kind

// The first thing that differs, in the order in which a step makes them.
struct Difference {
  std::string what;  // "loss", or a kind of state
  int rank = 0;
  int64_t key = -1;  // of the parameter
  HeldState held;    // of that parameter only
  double found = 0, expected = 0, scale = 1;
  double relative() const;
};

struct Comparison {
  std::optional<Difference> first;
  double largest = 0;  // relative
};

struct JobRunPair {
  const Job& job;
  const VirtualRun& run;
  const Job& one_job;
  const VirtualRun& one;
};

Comparison compare(const JobRunPair& pair);

}  // namespace prun
