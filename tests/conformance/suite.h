// Shared by all files of the suite: the transport under test, and jobs of connected ranks.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "tests/conformance/local_bootstrap.h"

namespace prun::testing {

struct Suite {
  std::string transport = "pipe", transport_options, job_id;
  std::vector<std::string> plugin_dirs;
  bool whole = true;  // false: only CI's share of slow cases
  WorldOptions options(const LocalBootstrap& bootstrap) const;
};
Suite& suite();

// A rank of a connected job. The arena is the transport's own memory, allocated before connecting; collectives may
// treat it differently from other memory.
struct Rank {
  LocalBootstrap& bootstrap;
  World& world;
  char* arena;
  int index, size;
};
constexpr int64_t kArenaBytes = 32 << 20;

struct ConnectedJob {
  LocalJob local;
  double deadline_s = 20;
  std::string algorithm;
};

// Forks the ranks, connects them over the suite's transport and runs the body in each.
std::vector<RankReport> run_connected(const ConnectedJob& job, const std::function<std::string(Rank&)>& body);
inline std::vector<RankReport> run_connected(int ranks, const std::function<std::string(Rank&)>& body) {
  ConnectedJob job;
  job.local.ranks = ranks;
  return run_connected(job, body);
}

std::vector<int> all_ranks(int n);  // 0 .. n-1
double now_s();                     // one clock for all ranks of this host

}  // namespace prun::testing
