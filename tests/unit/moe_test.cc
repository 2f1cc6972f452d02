// The choices, slots and messages of route. The gradient of the balancing loss against finite differences, and its
// average over data ranks and microbatches against one rank with all tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "kernels/devices.h"
#include "tests/unit/one_op.h"

namespace prun::test {
namespace {

struct Routed {
  Values weights, slots, counts;
};

Routed route(const char* device, const Values& logits, int64_t experts, int64_t k, int64_t capacity) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / experts;
  OneOp op("route");
  op.attr("k", k).attr("capacity", capacity).read(Dtype::f32, {1, tokens, experts}, logits);
  op.write(Dtype::f32, {tokens, k}).write(Dtype::i32, {tokens, k}).write(Dtype::f32, {experts});
  op.run(*open_device(device));
  EXPECT_EQ(op.written_beside(), "");
  return {op.result(0), op.result(1), op.result(2)};
}

TEST(Route, ChoosesTheLargestAndOfEqualOnesTheLower) {
  for (const char* device : {"cpu", "reference"}) {
    const Routed r = route(device, {1, 3, 2, 5, 5, 5, 0, 0, 9}, 3, 2, 0);
    EXPECT_EQ(r.slots, (Values{3, 6, 0, 4, 7, 1}));  // experts {1, 2}, {0, 1}, {2, 0}, three slots each
    EXPECT_EQ(r.counts, (Values{2, 2, 2}));
    EXPECT_NEAR(r.weights[0], 1 / (1 + std::exp(-1.0)), 1e-6);
    EXPECT_EQ(r.weights[2], 0.5);
    EXPECT_NEAR(r.weights[4] + r.weights[5], 1, 1e-6);
  }
}

TEST(Route, FullExpertsDropWhoComesLater) {
  for (const char* device : {"cpu", "reference"}) {
    const Routed r = route(device, {2, 1, 2, 1, 1, 2, 2, 1}, 2, 1, 2);
    EXPECT_EQ(r.slots, (Values{0, 1, 2, -1}));
    EXPECT_EQ(r.counts, (Values{3, 1}));
    EXPECT_EQ(r.weights, (Values{1, 1, 1, 1}));
  }
}

TEST(Route, NumbersThatAreNoneStillChooseDifferentExperts) {
  const double nan = std::nan("");
  const Routed r = route("cpu", {nan, nan, nan, 1, nan, 2}, 3, 3, 0);
  EXPECT_EQ(std::accumulate(r.counts.begin(), r.counts.end(), 0.0), 6);
  EXPECT_EQ(r.counts, (Values{2, 2, 2}));
}

constexpr int64_t kExperts = 4, kChoices = 2;
constexpr double kAux = 0.3;

Values balancing_gradient(const Values& logits, const Values& counts, int64_t covered, double scale) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / kExperts;
  const Values zeros(static_cast<size_t>(tokens * kChoices));
  OneOp op("route_grad");
  op.attr("k", kChoices).attr("aux", kAux).attr("tokens", covered).attr("scale", scale);
  op.read(Dtype::f64, {1, tokens, kExperts}, logits).read(Dtype::f64, {tokens, kChoices}, zeros);
  op.read(Dtype::f64, {tokens, kChoices}, zeros).read(Dtype::f64, {kExperts}, counts);
  op.write(Dtype::f64, {1, tokens, kExperts}).run(*open_device("reference"));
  return op.result();
}

// Returns aux·E·Σ f·P over all tokens for the given fractions f.
double balancing_loss(const Values& logits, const Values& counts) {
  const size_t tokens = logits.size() / kExperts;
  double loss = 0;
  for (size_t n = 0; n < tokens; ++n) {
    double sum = 0;
    for (size_t e = 0; e < kExperts; ++e) sum += std::exp(logits[n * kExperts + e]);
    for (size_t e = 0; e < kExperts; ++e)
      loss += kAux * kExperts * counts[e] / static_cast<double>(kChoices * tokens) *
              std::exp(logits[n * kExperts + e]) / sum / static_cast<double>(tokens);
  }
  return loss;
}

Values random_logits(int64_t tokens) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(-2, 2);
  Values logits(static_cast<size_t>(tokens * kExperts));
  for (double& value : logits) value = uniform(random);
  return logits;
}

TEST(Balancing, GradientAgreesWithFiniteDifferences) {
  const Values logits = random_logits(6), counts = route("reference", logits, kExperts, kChoices, 0).counts;
  const Values gradient = balancing_gradient(logits, counts, 6, 1.0 / 6);
  for (size_t i = 0; i < logits.size(); ++i) {
    Values up = logits, down = logits;
    up[i] += 1e-5, down[i] -= 1e-5;
    EXPECT_NEAR(gradient[i], (balancing_loss(up, counts) - balancing_loss(down, counts)) / 2e-5, 1e-9);
  }
}

// Two data ranks with two microbatches of three tokens each. A microbatch's counts include both ranks; its loss is one
// of two that are averaged.
TEST(Balancing, RanksAverageAndMicrobatchesAdd) {
  const Values all = random_logits(12);
  for (int64_t micro : {0, 1}) {
    const auto rank_logits = [&](int64_t rank) {
      const auto first = all.begin() + (rank * 2 + micro) * 3 * kExperts;
      return Values(first, first + 3 * kExperts);
    };
    Values together = rank_logits(0), second = rank_logits(1), counts(kExperts);
    together.insert(together.end(), second.begin(), second.end());
    for (int64_t rank : {0, 1}) {
      const Routed routed = route("reference", rank_logits(rank), kExperts, kChoices, 0);
      for (size_t e = 0; e < kExperts; ++e) counts[e] += routed.counts[e];
    }
    const Values whole = balancing_gradient(together, counts, 6, 1.0 / 6);
    for (int64_t rank : {0, 1}) {
      const Values mine = balancing_gradient(rank_logits(rank), counts, 6, 1.0 / 6);  // the rank has 6 tokens in a step
      for (size_t i = 0; i < mine.size(); ++i)
        EXPECT_NEAR(mine[i] / 2, whole[static_cast<size_t>(rank) * mine.size() + i] / 2, 1e-12);
    }
  }
}

}  // namespace
}  // namespace prun::test
