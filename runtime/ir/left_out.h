// Samples that all steps skip because a value in their batch was not finite. Steps take the other samples in order.
//
// Runs are counted in samples, not in batches, so that they remain valid with another batch size.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace prun {

struct LeftOut {
  std::vector<int64_t> runs;  // begin and end of each run, in samples from 0; ascending and disjoint

  int64_t sample_of(int64_t index) const;  // the sample at `index` among those that steps take
  void add(int64_t begin, int64_t end);    // may overlap earlier runs
  bool valid() const;
};

// Returns a one-based range: "batches 11-17" for batches 10, ..., 16.
std::string run_text(std::string_view one, std::string_view several, int64_t begin, int64_t end);

}  // namespace prun
