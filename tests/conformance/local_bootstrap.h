// Ranks as forked processes of a test: a Bootstrap in shared memory, and reports of what each rank found.
//
// Surprising fact: a rank never uses GoogleTest's assertions, whose results would stay in the child; it throws or
// returns a text, and the parent asserts on the reports.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "comm/comm.h"

namespace prun::testing {

struct RankReport {
  int status = 0;      // exit code; 128 + signal
  std::string text;    // "" when all was well; else what the rank returned, or "Exit N: message" of what it threw
  double seconds = 0;  // until it ended
};

// What a rank knows: who it is, how to reach the others, and how to end the job.
class LocalBootstrap : public Bootstrap {
 public:
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual void abort_job(const std::string& reason) = 0;
  virtual void barrier() { all_gather(""); }
};

struct LocalJob {
  int ranks = 1;
  double timeout_s = 60;       // after it the parent kills what is left and reports it
  bool abort_on_death = true;  // as the launcher does: a rank that dies or throws aborts the job
};

std::vector<RankReport> run_ranks(const LocalJob& job, const std::function<std::string(LocalBootstrap&)>& body);

// Texts of all reports that are not clean, by rank; "" if all are.
std::string failures(const std::vector<RankReport>& reports);

}  // namespace prun::testing
