// What prun tune says: the best three and what their steps go into, what makes the next slower, what was left out.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "job/job_spec.h"
#include "predict/trial.h"
#include "simulate/cluster.h"

namespace prun {

struct RefusedCandidates {
  std::string why, example;  // example: the settings of the first
  int count = 1;
};

struct Tuned {
  int64_t combinations = 0, estimated = 0;
  std::vector<Trial> trials;                // those that fit, the fastest first
  std::vector<Trial> misfits;               // the fastest first; of some only estimates are known
  std::vector<Trial> refuted;               // would be among the best, but train something else
  std::vector<RefusedCandidates> left_out;  // no plans, by reason, the most frequent first
};

// The command that runs the best.
std::string run_command_text(const JobSpec& job, const simulate::Cluster& cluster, const Trial& best);

// A line a reason, each after a line break; "" where nothing was left out.
std::string left_out_text(const Tuned& tuned);
// Of what has trials.
void print_tuned(const JobSpec& job, const simulate::Cluster& cluster, const Tuned& tuned);
void print_tuned_json(const JobSpec& job, const simulate::Cluster& cluster, const Tuned& tuned);

}  // namespace prun
