// Two runs side by side: all ranks of a job, and one rank that trained the same.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/virtual_ranks.h"
#include "prove/trained_state.h"

namespace prun {

inline constexpr double kMostDifference = 1e-12;  // of the largest number of its kind

inline constexpr std::string_view kLoss = "loss", kEvalLoss = "loss of the evaluation";

struct RunPair {
  const Job& job;
  const VirtualRun& run;
  const Job& one_job;
  const VirtualRun& one;
};

struct CompareOptions {
  // Over which weights drift apart between averages: the mean of their gradients is what one rank has.
  std::vector<std::string> drift_axes;
  // The optimizer makes something else of gradients than of their mean: weights are the same on all ranks, and no more.
  bool own_updates = false;
  bool signs = false;  // an update takes signs of gradients (lion); weights may differ if a gradient is only rounding
};

// The first thing that differs, in the order in which a step makes them.
struct Difference {
  std::string what;  // kLoss, kEvalLoss, or the name of a StateKind
  StateKind kind;
  int rank = 0;
  int64_t key = -1;  // of the parameter; -1: what differs is a loss
  HeldState held;    // of that parameter only
  double found = 0, right = 0;
  double scale = 1;  // the largest number of its kind
};

struct Comparison {
  std::optional<Difference> first;
  // Both runs have infinite numbers or NaN, and nothing differs before that.
  bool overflow = false;
  // Weights differ because an update took the sign of the rounding of a gradient of 0. Later steps may differ.
  bool rounded_signs = false;
  double largest = 0;  // relative to the largest number of its kind
};

Comparison compare(const RunPair& pair, const CompareOptions& options);

}  // namespace prun
