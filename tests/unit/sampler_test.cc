// The choice of a token: as often as its probability says, among those that temperature, top_k and top_p leave.
#include "exec/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace prun {
namespace {

const std::vector<double> kLogits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

// How often each token is chosen.
std::vector<double> shares(const Sampling& sampling, int64_t choices = 40000) {
  std::vector<double> counts(kLogits.size());
  for (int64_t i = 0; i < choices; ++i)
    counts[static_cast<size_t>(choose(kLogits, sampling, i).token)] += 1.0 / static_cast<double>(choices);
  return counts;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], wanted[i] == 0 ? 0 : 0.01) << i;
}

TEST(Sampler, ChoosesByProbability) { expect_near(shares({}), {0.1, 0.4, 0.2, 0.3}); }

TEST(Sampler, TemperatureFlattensOrSharpens) {
  const double sum = 0.01 + 0.16 + 0.04 + 0.09;  // at 0.5 probabilities are squared
  expect_near(shares({.temperature = 0.5}), {0.01 / sum, 0.16 / sum, 0.04 / sum, 0.09 / sum});
  expect_near(shares({.temperature = 0}, 10), {0, 1, 0, 0});
}

TEST(Sampler, TopKAndTopPLeaveTheMostLikely) {
  expect_near(shares({.top_k = 2}), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_near(shares({.top_k = 9}), {0.1, 0.4, 0.2, 0.3});
  expect_near(shares({.top_p = 0.39}), {0, 1, 0, 0});
  expect_near(shares({.top_p = 0.5}), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_near(shares({.top_k = 3, .top_p = 0.5}), {0, 4.0 / 7, 0, 3.0 / 7});  // 4/9 < 0.5
}

TEST(Sampler, OfEqualOnesTheLowerIsTheMoreLikely) {
  const std::vector<double> equal = {1, 2, 2, 2};
  EXPECT_EQ(choose(equal, {.temperature = 0}, 0).token, 1);
  for (int64_t i = 0; i < 100; ++i) EXPECT_NE(choose(equal, {.top_k = 2}, i).token, 3);
}

TEST(Sampler, LogProbabilitiesAreTheModelsOwn) {
  for (const double temperature : {0.0, 0.3, 2.0}) {
    const Choice choice = choose(kLogits, {.temperature = temperature, .top_k = 3, .top_p = 0.8, .seed = 5}, 7);
    EXPECT_NEAR(choice.log_probability, kLogits[static_cast<size_t>(choice.token)], 1e-12);
  }
  const std::vector<double> large = {1e4, 1e4 - 1};
  EXPECT_NEAR(choose(large, {.temperature = 0}, 0).log_probability, -std::log1p(std::exp(-1)), 1e-9);
}

}  // namespace
}  // namespace prun
