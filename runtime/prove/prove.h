// Proves by running: a plan made small, all its ranks in this process, must leave the same parameters, optimizer state
// and loss as one rank that trains the same model on the same samples.
//
// What runs is the compiled program of every class of ranks, its floats widened to f64, under random interleavings.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ir/plan.h"
#include "ir/plan_sizes.h"

namespace prun {

struct ProofOptions {
  std::function<Plan(const PlanSizes&)> record;      // the plan once more, with other sizes
  std::function<bool(std::string_view kind)> fuses;  // as CompileOptions
  int interleavings = 2;
};

struct Proof {
  enum class Verdict : uint8_t { equal, differs, not_run };
  Verdict verdict = Verdict::not_run;
  std::string text;  // what was proven; the first difference; why nothing was
  std::optional<Site> site;
  double largest = 0;  // difference, relative to the largest number of its kind
};

// Throws nothing that a plan can cause: what cannot be made small or run is `not_run`.
Proof prove(const Plan& plan, const ProofOptions& options);

}  // namespace prun
