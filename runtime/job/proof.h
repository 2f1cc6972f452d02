// What runtime/prove says of a plan, for the screen: under --prove whatever it takes, otherwise where it takes a
// moment.
#pragma once
#include <string>
#include <vector>

#include "ir/plan.h"
#include "job/job_spec.h"
#include "job/shared_texts.h"

namespace prun {

struct ProofReport {
  bool proven = false;
  std::string text;                     // one sentence: what was proven, or why nothing was
  std::vector<std::string> apart_from;  // Proof::apart_from
};

// Throws plan_error at the first difference; under --prove, where nothing could be proven, Error(check_failed).
// `known`: where what is proven of a small plan is kept, for others that are the same made small.
ProofReport prove_plan(const JobSpec& spec, const Plan& plan, int ranks, SharedTexts* known = nullptr);

}  // namespace prun
