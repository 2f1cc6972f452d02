// One rank of `prun bench`: opens the transports and measures row after row; rank 0 prints each as a line of JSON.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "bench/settings.h"
#include "launch/launch.h"

namespace prun {

// start.job holds the packed words of the command line; start.recorder is kBenchNote bytes of text: the rank's current
// work.
constexpr size_t kBenchNote = 256;

// Returns the exit code of the rank's process; reports failures to the launcher through start.launcher.
int run_bench_rank(const RankStart& start, const std::vector<std::string>& plugin_dirs,
                   const std::string& algorithm_costs = "");

// Prints rows: nccl-tests' columns, or the lines of JSON unchanged.
class BenchTable {
 public:
  explicit BenchTable(const BenchOptions& options) : options_(options) {}
  void row(const std::string& json);
  void finish();
  int64_t wrong() const { return wrong_; }

 private:
  const BenchOptions& options_;
  std::string heading_;  // heading of the last row's table
  int64_t wrong_ = 0;
  double bus_sum_ = 0;
  int bus_count_ = 0;
};

}  // namespace prun
