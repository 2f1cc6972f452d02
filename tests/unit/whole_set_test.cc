// Tests that the weighted mean of batches equals the mean of the whole set, for all sizes of set and batch.
#include <gtest/gtest.h>

#include <cmath>

#include "ir/data_source.h"

namespace prun {
namespace {

double mean_by_batches(const WholeSet& set) {
  std::vector<double> means;
  for (int64_t b = 0; b < set.batches(); ++b) {
    double sum = 0;
    for (int64_t slot = 0; slot < set.batch; ++slot) {
      const int64_t sample = set.sample(b, slot);
      EXPECT_GE(sample, 0);
      EXPECT_LT(sample, set.samples);
      sum += static_cast<double>(sample * sample + 3);
    }
    means.push_back(sum / static_cast<double>(set.batch));
  }
  return set.mean(means);
}

TEST(WholeSet, TheMeanIsThatOfTheSet) {
  for (int64_t samples = 1; samples <= 40; ++samples)
    for (int64_t batch = 1; batch <= 24; ++batch) {
      double sum = 0;
      for (int64_t i = 0; i < samples; ++i) sum += static_cast<double>(i * i + 3);
      const WholeSet set{samples, batch};
      const double mean = sum / static_cast<double>(samples);
      EXPECT_NEAR(mean_by_batches(set), mean, 1e-13 * mean) << samples << " samples in batches of " << batch;
      EXPECT_LE(set.batches(), samples / batch + 2);
    }
}

TEST(WholeSet, WholeBatchesAreAveragedAsBefore) {
  const DataSource whole{.global_batch = 4, .whole = 12}, counted{.global_batch = 4};
  const std::vector<double> means = {0.1, 0.2, 0.7};
  EXPECT_EQ(evaluation_loss(whole, means), evaluation_loss(counted, means));
}

TEST(WholeSet, NoWeightIsLarge) {
  for (const int64_t batch : {7, 64, 1000})
    for (int64_t samples = 1; samples < 2 * batch; ++samples) {
      const WholeSet set{samples, batch};
      for (int64_t b = 0; b < set.batches(); ++b) EXPECT_LE(std::abs(set.weight(b)), 1);
    }
}

}  // namespace
}  // namespace prun
