// Ranks as forked processes of a test: a Bootstrap in shared memory, and a report per rank.
//
// A rank never uses GoogleTest's assertions, because their results would remain in the child; it throws or returns a
// text, and the parent asserts on the reports.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "comm/comm.h"

namespace prun::testing {

struct RankReport {
  int status = 0;      // exit code; 128 + signal
  std::string text;    // "" = success; else the returned text, or "Exit N: message" of the exception
  double seconds = 0;  // until it ended
};

// A rank's view of the job: its index, communication with the other ranks, and abort.
class LocalBootstrap : public Bootstrap {
 public:
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual void abort_job(const std::string& reason) = 0;
  virtual void barrier() { all_gather(""); }
};

struct LocalJob {
  int ranks = 1;
  double timeout_s = 60;       // afterwards the parent kills the remaining ranks and reports it
  bool abort_on_death = true;  // as the launcher does: a rank that dies or throws aborts the job
};

std::vector<RankReport> run_ranks(const LocalJob& job, const std::function<std::string(LocalBootstrap&)>& body);

// Returns the texts of all failed reports, by rank; "" if all succeeded.
std::string failures(const std::vector<RankReport>& reports);

}  // namespace prun::testing
