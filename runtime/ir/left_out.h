// Samples that all steps skip, because a number in their batch was not finite. Steps take the other samples in order.
//
// Runs are counted in samples and not in batches, so that they hold for a run that goes on with another batch size.
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

// "batches 11-17" of batches 10, ..., 16: counted from 1 as people count.
std::string run_text(std::string_view one, std::string_view several, int64_t begin, int64_t end);

}  // namespace prun
