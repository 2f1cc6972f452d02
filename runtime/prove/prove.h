// Proves by running: a plan made small, all its ranks in this process, must leave the same parameters, optimizer state
// and loss as one rank that trains the same model on the same samples.
//
// What runs is the compiled program of every class of ranks, its floats widened to f64, under random interleavings.
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
  FusesOp fuses;                    // as CompileOptions
  int64_t vocabulary_multiple = 1;  // as CompileOptions; the one rank beside it pads nothing
  double most_work = 0;             // in units of about a microsecond; 0: whatever it takes
  // What was proven of the same small programs before, by a number that they have alike; null: nothing is kept.
  std::function<std::optional<std::string>(size_t programs)> known;
  std::function<void(size_t programs, const std::string& text)> proven;
  // What is wrong with a job before it runs, "" for nothing; null: nothing is known.
  std::function<std::string(const Job&)> problem;
  std::function<void(Job&)> spoil;  // tests: makes a mistake in the small plan's program
};

struct Proof {
  enum class Verdict : uint8_t {
    equal,       // to one rank
    as_it_says,  // a strategy says that it differs; it does what it says
    differs,
    undeclared,  // weights drift between averages, and no strategy says so
    not_run
  };
  Verdict verdict = Verdict::not_run;
  std::string text;  // what was proven; the first difference, in lines; why nothing was
  std::optional<Site> site;
  std::vector<std::string> apart_from;  // known differences that a proof does not cover (known_differences.h)
};

// "proven: ..", "proven, apart from ..: ..", "not proven: ..".
std::string sentence(const Proof& proof);

// Throws nothing that a plan can cause. The verdict is `not_run` if the plan cannot be made small, if the small plan
// alone is wrong, or if its numbers overflow.
Proof prove(const Plan& plan, const ProofOptions& options);

}  // namespace prun
