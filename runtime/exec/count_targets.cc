#include "exec/count_targets.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "device/element.h"
#include "device/ids.h"

namespace prun {

TargetCount::TargetCount(SampleReaders readers, std::string targets, std::string weights, int64_t per_sample,
                         std::string path)
    : readers_(std::move(readers)),
      targets_(std::move(targets)),
      weights_(std::move(weights)),
      path_(path.empty() ? "data" : std::move(path)),
      per_sample_(per_sample),
      weight_(per_sample, 1.0) {}

void TargetCount::read_weights(int64_t sample) {
  if (weights_.empty()) return;
  readers_.weights(weights_, sample, weight_);
  for (int64_t i = 0; i < per_sample_; ++i)
    if (!(weight_[i] >= 0) || !std::isfinite(weight_[i]))
      throw usage_error(fmt::format("{}: the weight of target {} of sample {} is {} ('{}'): weights are numbers from 0",
                                    path_, i, sample, weight_[i], weights_));
}

// The order of the sum is the same on every rank and mesh, so that all ranks compute the same bits.
double TargetCount::share(const CountedSamples& samples) {
  double sum = 0;
  for (int64_t slot = 0; slot < samples.count; ++slot) {
    const int64_t sample = samples.sample(slot);
    const std::optional<int64_t> known = weights_.empty() && readers_.count ? readers_.count(sample) : std::nullopt;
    if (known) {
      sum += static_cast<double>(*known);
      continue;
    }
    readers_.ids(targets_, sample, ids_);
    read_weights(sample);
    for (int64_t i = 0; i < per_sample_; ++i)
      if (ids_[i] != kIgnoredTarget) sum += weight_[i];
  }
  const int64_t targets = samples.count * per_sample_;
  if (sum > 0) return static_cast<double>(targets) / sum;
  throw usage_error(fmt::format(
      "{}: none of the {} targets of {} counts in the loss{}: a mean over nothing has no value; remove samples "
      "without targets, or make the batch larger",
      path_, targets, samples.words, weights_.empty() ? ", because all are ignored" : ""));
}

void TargetCount::write(int64_t sample, const int32_t* ids, int64_t count,
                        const std::function<int64_t(int64_t)>& position, double share, Dtype dtype, void* to,
                        int64_t at) {
  read_weights(sample);
  for (int64_t i = 0; i < count; ++i)
    store_element(dtype, to, at + i, ids[i] == kIgnoredTarget ? 0 : weight_[position(i)] * share);
}

}  // namespace prun
