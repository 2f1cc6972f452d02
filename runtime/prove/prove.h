// Proof by execution: a plan is made small, and all its ranks run in this process. They must end with the same
// parameters, optimizer state and loss as one rank that trains the same model on the same samples.
//
// The run executes the compiled program of every class of ranks, with floats widened to f64, under random
// interleavings.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "prove/twins.h"

namespace prun {

struct ProofOptions {
  RecordPlan record;
  FusesOp fuses;                    // see CompileOptions
  int64_t vocabulary_multiple = 1;  // see CompileOptions; the single rank pads nothing
  double most_work = 0;             // in units of about a microsecond; 0 = unlimited
  // Cache of proofs, keyed by a hash of the small programs; null = no cache.
  std::function<std::optional<std::string>(size_t programs)> known;
  std::function<void(size_t programs, const std::string& text)> proven;
  // Returns the error of a job before it runs, "" = none; null = no such check.
  std::function<std::string(const Job&)> problem;
  std::function<void(Job&)> spoil;  // tests: injects a fault into the small plan's program
};

struct Proof {
  enum class Verdict : uint8_t {
    equal,       // equal to one rank
    as_it_says,  // a strategy declares a difference, and the run matches the declaration
    differs,
    undeclared,  // weights drift between averages, and no strategy declares it
    not_run
  };
  Verdict verdict = Verdict::not_run;
  std::string text;  // the result; the first difference, in lines; or the reason for not running
  std::optional<Site> site;
  std::vector<std::string> apart_from;  // known differences that a proof does not cover (known_differences.cc)
};

// Returns "proven: ..", "proven, apart from ..: .." or "not proven: ..".
std::string sentence(const Proof& proof);

// Throws no error that a plan can cause. The verdict is `not_run` if the plan cannot be made small, if the small plan
// alone is wrong, or if its numbers overflow.
Proof prove(const Plan& plan, const ProofOptions& options);

}  // namespace prun
