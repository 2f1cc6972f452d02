// Rows as a user sees them: nccl-tests' columns, or the lines of JSON as they are.
#pragma once
#include <string>

#include "options.h"

namespace prun {

class BenchTable {
 public:
  explicit BenchTable(const Options& options) : options_(options) {}
  void row(const std::string& json);
  void finish();
  int64_t wrong() const { return wrong_; }

 private:
  const Options& options_;
  std::string heading_;  // of the table that the last row was in
  int64_t wrong_ = 0;
  double bus_sum_ = 0;
  int bus_count_ = 0;
};

}  // namespace prun
