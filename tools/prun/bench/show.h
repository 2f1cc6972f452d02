// Rows as a user sees them: nccl-tests' columns, or the lines of JSON as they are.
#pragma once
#include <string>

#include "bench/settings.h"

namespace prun {

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
