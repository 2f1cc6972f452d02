// Compares two runs: all ranks of a job, and a single rank that trained the same model.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/virtual_ranks.h"
#include "prove/trained_state.h"

namespace prun {

inline constexpr double kMostDifference = 1e-12;  // relative to the largest number of the same kind

inline constexpr std::string_view kLoss = "loss", kEvalLoss = "loss of the evaluation";

struct RunPair {
  const Job& job;
  const VirtualRun& run;
  const Job& one_job;
  const VirtualRun& one;
};

struct CompareOptions {
  // Axes over which weights drift between averages; the mean of their gradients equals the single rank's gradient.
  std::vector<std::string> drift_axes;
  // The update is not linear in the gradients, so with drift the weights need only be equal on all ranks.
  bool own_updates = false;
  bool signs = false;  // an update takes signs of gradients (lion); weights may differ if a gradient is only rounding
                       // error
};

// The first difference, in the order in which a step computes its numbers.
struct Difference {
  std::string what;  // kLoss, kEvalLoss, or the name of a StateKind
  StateKind kind;
  int rank = 0;
  int64_t key = -1;  // key of the parameter; -1 = a loss differs
  HeldState held;    // state of that parameter only
  double found = 0, right = 0;
  double scale = 1;  // largest number of the same kind
};

struct Comparison {
  std::optional<Difference> first;
  // Both runs have overflowed, and nothing differs before that.
  bool overflow = false;
  // Weights differ because an update took the sign of a rounding error of a zero gradient. Later steps may differ.
  bool rounded_signs = false;
  double largest = 0;  // largest difference, relative to the largest number of the same kind
};

Comparison compare(const RunPair& pair, const CompareOptions& options);

}  // namespace prun
