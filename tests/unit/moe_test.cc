// The choices, slots and messages of route. The gradient of the balancing loss against finite differences, and its
// average over data ranks and microbatches against one rank with all tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
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

constexpr double kUnrouted = std::numeric_limits<int32_t>::min();

Routed route(const char* device, const Values& logits, int64_t experts, int64_t k, int64_t capacity) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / experts;
  OneOp op("route");
  op.attr("k", k).attr("capacity", capacity).read(Dtype::f32, {1, tokens, experts}, logits);
  op.write(Dtype::f32, {tokens, k}).write(Dtype::i32, {tokens, k}).write(Dtype::f32, {experts});
  op.write(Dtype::i32, {experts, 1});
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
    EXPECT_EQ(r.slots, (Values{0, 1, 2, -1}));  // the last one chose expert 0
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

// Six experts in three groups, two choices from two groups. The bias changes the choice, and no weight.
TEST(Route, ABiasAndGroupsDecideOnlyWhoIsChosen) {
  for (const char* device : {"cpu", "reference"}) {
    const Values logits = {2, 1, 3, -9, 0, 1.5, 2, 1, 3, -9, 0, 1.5}, bias = {0, 0, 0, 0, 0.5, 0};
    OneOp op("route");
    for (const auto& [name, value] : {std::pair{"k", 2}, {"biased", 1}, {"runs", 1}, {"groups", 3}, {"groups_kept", 2}})
      op.attr(name, int64_t{value});
    op.attr("scores", std::string("sigmoid")).attr("factor", 2.0);
    op.read(Dtype::f32, {1, 2, 6}, logits).read(Dtype::f32, {6}, bias).read(Dtype::i32, {1, 2, 2}, {0, 2, 7, 8});
    op.write(Dtype::f32, {2, 2}).write(Dtype::i32, {2, 2}).write(Dtype::f32, {6}).write(Dtype::i32, {6, 1});
    op.run(*open_device(device));
    const auto s = [](double x) { return 1 / (1 + std::exp(-x)); };
    // Groups {0, 1}, {2, 3}, {4, 5} have 1.61, 0.95 and 1.82: expert 2, the best, is not in one of the two.
    EXPECT_EQ(op.result(1), (Values{8, 0, kUnrouted, kUnrouted}));
    EXPECT_EQ(op.result(2), (Values{1, 0, 0, 0, 1, 0}));
    EXPECT_EQ(op.result(3), op.result(2));
    EXPECT_NEAR(op.result(0)[0], 2 * s(0) / (s(0) + s(2)), 1e-6);
    EXPECT_NEAR(op.result(0)[1], 2 * s(2) / (s(0) + s(2)), 1e-6);
  }
}

// Two experts with two sources of two slots each: of expert 0 the first slot of each source, of expert 1 both of one.
TEST(ExpertLinear, SlotsWithoutATokenAreSkipped) {
  for (const char* device : {"cpu", "reference"}) {
    const Values x = {1, 2, 3, 4, 5, 6, 7, 8}, filled = {1, 1, 2, 0};
    OneOp op("expert_linear");
    op.read(Dtype::f32, {2, 4, 1}, x).read(Dtype::f32, {2, 1, 1}, {2, 3}).read(Dtype::i32, {2, 2}, filled);
    op.write(Dtype::f32, {2, 4, 1}).run(*open_device(device));
    EXPECT_EQ(op.result(), (Values{2, 0, 6, 0, 15, 18, 0, 0}));
    OneOp dw("expert_linear_dw");
    dw.read(Dtype::f32, {2, 4, 1}, x).read(Dtype::f32, {2, 4, 1}, x).read(Dtype::i32, {2, 2}, filled);
    dw.write(Dtype::f32, {2, 1, 1}).run(*open_device(device));
    EXPECT_EQ(dw.result(), (Values{1 + 9, 25 + 36}));
  }
}

// Rows after the packed ones remain as they are.
TEST(PackRows, RowsWithATokenComeSourceAfterSource) {
  const Values x = {1, 2, 3, 4, 5, 6, 7, 8}, filled = {3, 2, 6, 0};  // round 1: one, none; two, none
  OneOp op("pack_rows");
  op.attr("round", int64_t{1}).read(Dtype::f32, {2, 4, 1}, x).read(Dtype::i32, {2, 2}, filled);
  op.write(Dtype::f32, {2, 2, 2, 1}).run(*open_device("cpu"));
  const Values packed = op.result();
  EXPECT_EQ(Values(packed.begin(), packed.begin() + 3), (Values{1, 5, 6}));
}

constexpr int64_t kExperts = 4, kChoices = 2;
constexpr double kAux = 0.3, kZ = 0.2;

struct Routing {
  const char* scores = "softmax";
  Values runs = {};
};

Values router_gradient(const Values& logits, const Values& counts, int64_t covered, double scale,
                       const Routing& routing = {}) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / kExperts;
  const Values zeros(static_cast<size_t>(tokens * kChoices));
  Values slots = zeros;
  for (size_t i = 0; i < slots.size() && !routing.runs.empty(); ++i)
    if (routing.runs[i / kChoices * 2 + 1] - routing.runs[i / kChoices * 2] == 1) slots[i] = kUnrouted;
  OneOp op("route_grad");
  op.attr("k", kChoices).attr("aux", kAux).attr("z", kZ).attr("tokens", covered).attr("scale", scale);
  op.attr("runs", int64_t{routing.runs.empty() ? 0 : 1}).attr("scores", std::string(routing.scores));
  op.read(Dtype::f64, {1, tokens, kExperts}, logits).read(Dtype::f64, {tokens, kChoices}, zeros);
  op.read(Dtype::f64, {tokens, kChoices}, zeros).read(Dtype::i32, {tokens, kChoices}, slots);
  op.read(Dtype::f64, {kExperts}, counts);
  op.write(Dtype::f64, {1, tokens, kExperts}).run(*open_device("reference"));
  return op.result();
}

// Returns aux·E·Σ f·P + z·mean lse² over the tokens that count, for the given choices.
double router_loss(const Values& logits, const Values& counts, const Routing& routing = {}) {
  const size_t tokens = logits.size() / kExperts;
  const double counted = std::accumulate(counts.begin(), counts.end(), 0.0) / kChoices;
  double loss = 0;
  for (size_t n = 0; n < tokens; ++n) {
    if (!routing.runs.empty() && routing.runs[2 * n + 1] - routing.runs[2 * n] == 1) continue;
    double sum = 0, all = 0;
    const auto score = [&](size_t e) {
      const double x = std::exp(logits[n * kExperts + e]);
      return std::string(routing.scores) == "softmax" ? x : x / (1 + x);
    };
    for (size_t e = 0; e < kExperts; ++e) sum += std::exp(logits[n * kExperts + e]), all += score(e);
    for (size_t e = 0; e < kExperts; ++e)
      loss += kAux * kExperts * counts[e] / (kChoices * counted) * score(e) / all / counted;
    loss += kZ * std::log(sum) * std::log(sum) / counted;
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
  const Values logits = random_logits(6), every = route("reference", logits, kExperts, kChoices, 0).counts;
  const Values padded = {0, 3, 0, 3, 0, 3, 3, 4, 4, 6, 4, 6}, some = {4, 3, 2, 1};  // of five tokens
  for (const Routing& routing :
       {Routing{}, Routing{"sigmoid"}, Routing{"softmax", padded}, Routing{"sigmoid", padded}}) {
    const Values& counts = routing.runs.empty() ? every : some;
    const Values gradient = router_gradient(logits, counts, 6, 1.0 / 6, routing);
    for (size_t i = 0; i < logits.size(); ++i) {
      Values up = logits, down = logits;
      up[i] += 1e-5, down[i] -= 1e-5;
      EXPECT_NEAR(gradient[i], (router_loss(up, counts, routing) - router_loss(down, counts, routing)) / 2e-5, 1e-9)
          << routing.scores << i;
    }
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
    const Values whole = router_gradient(together, counts, 6, 1.0 / 6);
    for (int64_t rank : {0, 1}) {
      const Values mine = router_gradient(rank_logits(rank), counts, 6, 1.0 / 6);  // the rank has 6 tokens in a step
      for (size_t i = 0; i < mine.size(); ++i)
        EXPECT_NEAR(mine[i] / 2, whole[static_cast<size_t>(rank) * mine.size() + i] / 2, 1e-12);
    }
  }
}

}  // namespace
}  // namespace prun::test
