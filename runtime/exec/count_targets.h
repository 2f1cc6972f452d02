// Shares of targets in the mean over what counts in a whole batch (ir::TargetShares): weight · number of targets / sum
// of all weights, 0 for ignored targets. A loss that sums share · cross-entropy, divided by the number of targets,
// needs no other count, however its rows are divided over ranks and microbatches.
//
// Surprising fact: each rank counts the targets of all ranks itself, while it reads ahead. They are few bytes compared
// with a step, and so no collective is needed.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/types.h"

namespace prun {

// The samples over which a mean is taken: those of a step, or of all batches of an evaluation.
struct CountedSamples {
  int64_t count = 0;
  std::function<int64_t(int64_t slot)> sample;  // global index of a sample
  std::string words;                            // "step 3"
};

// Reads one whole sample of an input, on every rank alike.
struct SampleReaders {
  std::function<void(const std::string& input, int64_t sample, std::vector<int32_t>& ids)>
      ids;  // ignored: kIgnoredTarget
  std::function<void(const std::string& input, int64_t sample, std::vector<double>& weights)> weights;
  // Returns the number of targets of a sample that count, if it is known without reading them; null = it never is.
  std::function<std::optional<int64_t>(int64_t sample)> count;
};

class TargetCount {
 public:
  // `weights`: "" = all weigh 1. `path`: file of the targets, for messages; "" = none.
  TargetCount(SampleReaders readers, std::string targets, std::string weights, int64_t per_sample, std::string path);

  // Returns the share of a target of weight 1. Throws usage_error if no target counts, or if a weight is negative.
  double share(const CountedSamples& samples);

  // Writes the shares of a sample's targets. `ids`: this rank's targets of the sample, `position(i)` their positions in
  // the whole sample; `to`: the sample's shares, f32 or f64.
  void write(int64_t sample, const int32_t* ids, int64_t count, const std::function<int64_t(int64_t)>& position,
             double share, Dtype dtype, void* to, int64_t at);

 private:
  void read_weights(int64_t sample);

  SampleReaders readers_;
  std::string targets_, weights_, path_;
  int64_t per_sample_;
  std::vector<int32_t> ids_;  // a sample
  std::vector<double> weight_;
};

}  // namespace prun
