// The result of runtime/prove for the screen: in full under --prove, otherwise only if it is quick.
#pragma once
#include <string>
#include <vector>

#include "ir/plan.h"
#include "job/job_spec.h"
#include "job/shared_texts.h"

namespace prun {

struct ProofReport {
  bool proven = false;
  std::string text;                     // one sentence: the proven property, or why there is none
  std::vector<std::string> apart_from;  // Proof::apart_from
};

// Throws plan_error at the first difference; under --prove, Error(check_failed) if nothing could be proven. `known`:
// cache of results by shrunk plan, for other plans that shrink to the same one.
ProofReport prove_plan(const JobSpec& spec, const Plan& plan, int ranks, SharedTexts* known = nullptr);

}  // namespace prun
