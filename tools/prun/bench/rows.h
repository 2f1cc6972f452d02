// One rank of `prun bench`: opens the transports, measures row after row; rank 0 prints each as a line of JSON.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "bench/settings.h"
#include "launch/launch.h"

namespace prun {

// start.job holds the packed words of the command line. start.recorder is kBenchNote bytes of text: what the rank does.
constexpr size_t kBenchNote = 256;

// The exit code of the rank's process; failures go to the launcher through start.launcher.
int run_bench_rank(const RankStart& start, const std::vector<std::string>& plugin_dirs,
                   const std::string& algorithm_costs = "");

// Rows as a user sees them: nccl-tests' columns, or the lines of JSON as they are.
class BenchTable {
 public:
  explicit BenchTable(const BenchOptions& options) : options_(options) {}
  void row(const std::string& json);
  void finish();
  int64_t wrong() const { return wrong_; }

 private:
  const BenchOptions& options_;
  std::string heading_;  // of the table that the last row was in
  int64_t wrong_ = 0;
  double bus_sum_ = 0;
  int bus_count_ = 0;
};

}  // namespace prun
