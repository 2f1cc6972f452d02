// The sampler: each token is chosen with its probability among those that temperature, top_k and top_p retain.
#include "exec/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "prun/philox.h"

namespace prun {
namespace {

const std::vector<double> kLogits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

// Returns the relative frequency of each token.
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
  const double sum = 0.01 + 0.16 + 0.04 + 0.09;  // at temperature 0.5 probabilities are squared
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

// The definition: sorts the tokens by logit and subtracts their weights from the random number, one after the other.
int64_t by_definition(const std::vector<double>& logits, const Sampling& sampling, int64_t index) {
  const double top = *std::ranges::max_element(logits);
  std::vector<size_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), size_t{0});
  std::ranges::stable_sort(tokens, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (sampling.temperature == 0) return static_cast<int64_t>(tokens[0]);
  if (sampling.top_k > 0) tokens.resize(std::min(tokens.size(), static_cast<size_t>(sampling.top_k)));
  std::vector<double> weights;
  for (const size_t token : tokens) weights.push_back(std::exp((logits[token] - top) / sampling.temperature));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double so_far = 0;
  size_t kept = 0;
  while (kept < weights.size() && (kept == 0 || so_far < sampling.top_p * sum)) so_far += weights[kept++];
  const philox::Words words = philox::block(sampling.seed, (1ULL << 62) + 4, static_cast<uint64_t>(index));
  double left = (static_cast<double>(words[0]) + static_cast<double>(words[1]) * 0x1p-32) * 0x1p-32 * so_far;
  size_t i = 0;
  while (i + 1 < kept && left >= weights[i]) left -= weights[i++];
  return static_cast<int64_t>(tokens[i]);
}

std::vector<double> random_logits(size_t count, double spread, double step, std::mt19937& random) {
  std::normal_distribution<double> normal(0, spread);
  std::vector<double> logits(count);
  for (double& logit : logits) logit = step > 0 ? std::round(normal(random) / step) * step : normal(random);
  return logits;
}

void expect_the_definition(const std::vector<double>& logits, uint64_t seed) {
  const auto count = static_cast<int64_t>(logits.size());
  for (const double temperature : {0.0, 0.05, 0.7, 1.0, 50.0})
    for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{40}, int64_t{300}, count / 2, count - 1, count})
      for (const double top_p : {1e-9, 0.1, 0.5, 0.9, 1 - 1e-12, 1.0}) {
        const Sampling sampling{.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed};
        for (int64_t index = 0; index < 2; ++index)
          ASSERT_EQ(choose(logits, sampling, index).token, by_definition(logits, sampling, index))
              << count << " logits, temperature " << temperature << ", top_k " << top_k << ", top_p " << top_p
              << ", seed " << seed << ", index " << index;
      }
}

TEST(Sampler, SelectsTheTokenThatSortingFinds) {
  std::mt19937 random(7);
  uint64_t seed = 0;
  for (const size_t count : {1, 2, 257, 300, 2000})
    for (const double spread : {0.1, 3.0, 200.0})
      for (const double step : {0.0, 0.25, 30.0})  // with a coarse step, many logits are equal
        expect_the_definition(random_logits(count, spread, step, random), ++seed);
}

TEST(Sampler, SelectsInAWholeVocabulary) {
  std::mt19937 random(8);
  const std::vector<double> logits = random_logits(128256, 4, 0, random);
  for (const int64_t top_k : {0, 50000})
    for (const double top_p : {0.95, 1.0}) {
      const Sampling sampling{.top_k = top_k, .top_p = top_p, .seed = 3};
      for (int64_t index = 0; index < 3; ++index)
        EXPECT_EQ(choose(logits, sampling, index).token, by_definition(logits, sampling, index));
    }
}

// Half of the probability mass ends exactly between two tokens, so the order of the additions decides.
TEST(Sampler, DecidesBordersAsSortingDoes) {
  for (const size_t count : {400, 512, 600, 1000, 3000}) {
    expect_the_definition(std::vector<double>(count, -0.3), count);
    std::vector<double> thirds(count, std::log(1.0 / 3));
    for (size_t i = count - count / 4; i < count; ++i) thirds[i] = 0;
    expect_the_definition(thirds, count);
  }
}

TEST(Sampler, TokensOfLogitMinusInfinityAreNotChosen) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> logits(1000, -kInfinity);
  for (size_t i = 0; i < 300; ++i) logits[3 * i] = static_cast<double>(i % 7);
  expect_the_definition(logits, 1);
  for (int64_t index = 0; index < 200; ++index)
    EXPECT_GT(logits[static_cast<size_t>(choose(logits, {}, index).token)], -1);
}

TEST(Sampler, RefusesNaNAndInfinity) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> logits(1000, 0.5);
  for (const double wrong : {std::numeric_limits<double>::quiet_NaN(), kInfinity})
    for (const double temperature : {0.0, 1.0}) {
      logits[700] = wrong;
      EXPECT_THROW(choose(logits, {.temperature = temperature}, 0), Error);
    }
  EXPECT_THROW(choose(std::vector<double>(400, -kInfinity), {}, 0), Error);
}

}  // namespace
}  // namespace prun
