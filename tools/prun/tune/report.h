// The output of prun tune: the best three candidates with the parts of their steps, the reasons why the next ones are
// slower, and the rejected candidates.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "job/job_spec.h"
#include "predict/trial.h"
#include "simulate/cluster.h"

namespace prun {

struct RefusedCandidates {
  std::string why, example;  // example: the settings of the first candidate
  int count = 1;
};

struct Tuned {
  int64_t combinations = 0, estimated = 0;
  std::vector<Trial> trials;                // fitting candidates, fastest first
  std::vector<Trial> misfits;               // fastest first; some are only estimated
  std::vector<Trial> refuted;               // fast candidates that train something else
  std::vector<RefusedCandidates> left_out;  // invalid plans by reason, most frequent first
};

// Returns the command that runs the best candidate.
std::string run_command_text(const JobSpec& job, const simulate::Cluster& cluster, const Trial& best);

// Returns a line per reason, each after a line break; "" if nothing was omitted.
std::string left_out_text(const Tuned& tuned);
// `tuned` has at least one trial.
void print_tuned(const JobSpec& job, const simulate::Cluster& cluster, const Tuned& tuned);
void print_tuned_json(const JobSpec& job, const simulate::Cluster& cluster, const Tuned& tuned);

}  // namespace prun
