// A plan has one result, independent of the strategy, the number of ranks and the order in which ready ops run.
//
// The programs are interpreted in this process. Surprising fact: f64 makes these tests the most sensitive, because a
// wrong factor or a missing reduction keeps its size while rounding nearly vanishes.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "ir/ops.h"
#include "kernels/devices.h"
#include "tests/parity/parity_job.h"

namespace prun::test {
namespace {

Settings with(Settings settings, const Settings& more) {
  for (const auto& [name, value] : more) settings[name] = value;
  return settings;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected, double relative) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t step = 0; step < got.size(); step++) {
    EXPECT_NEAR(got[step], expected[step], relative * std::abs(expected[step])) << "step " << step;
  }
}

class Meaning : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  std::string strategy() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
};

TEST_P(Meaning, LossesAreThoseOfOneRank) {
  static const std::vector<double> kSingle = interpret(1, {{"strategy", "single"}});
  EXPECT_LT(kSingle.back(), kSingle.front() - 0.5) << "nothing is learned";
  expect_near(interpret(ranks(), {{"strategy", strategy()}}), kSingle, 1e-5);
}

TEST_P(Meaning, LossesAreThoseOfOneRankInF64) {
  // SGD, because AdamW hides a wrong factor; clipping, because a shard counted twice changes the norm; a tied head,
  // because its gradient is complete only after two calls.
  const Settings exact = {{"dtype", "f64"}, {"optimizer", "sgd"}, {"lr", "0.5"},    {"clip", "1"},   {"steps", "4"},
                          {"layers", "1"},  {"width", "12"},      {"context", "5"}, {"tied", "true"}};
  static const std::vector<double> kSingle = interpret(1, with(exact, {{"strategy", "single"}}), "reference");
  EXPECT_LT(kSingle.back(), kSingle.front() - 0.01) << "nothing is learned";
  expect_near(interpret(ranks(), with(exact, {{"strategy", strategy()}}), "reference"), kSingle, 1e-10);
}

TEST_P(Meaning, LossesInBf16FollowThoseInF32) {
  static const std::vector<double> kSingle = interpret(1, {{"strategy", "single"}});
  expect_near(interpret(ranks(), {{"strategy", strategy()}, {"dtype", "bf16"}}), kSingle, 0.01);
}

INSTANTIATE_TEST_SUITE_P(, Meaning, testing::Combine(testing::Values("ddp", "zero3"), testing::Values(1, 2, 3, 4, 8)),
                         [](const auto& made) {
                           return std::string(std::get<0>(made.param)) + "_on_" +
                                  std::to_string(std::get<1>(made.param));
                         });

std::vector<double> interpret_own(int ranks, const Settings& settings) {
  return losses_of(
      run_virtual_ranks(parity_job(ranks, settings, "reference", "tests/parity/own.lua"), *open_device("reference")));
}

TEST(OnesOwn, SchedulesMayGoBackwardsAndMixHalves) {
  const std::vector<double> single = interpret_own(1, {});
  for (const char* schedule : {"backwards", "halves"}) {
    expect_near(interpret_own(2, {{"pp", "2"}, {"schedule", schedule}}), single, 1e-10);
    for (const char* strategy : {"ddp", "zero1", "zero3"})
      expect_near(interpret_own(4, {{"pp", "2"}, {"schedule", schedule}, {"strategy", strategy}}), single, 1e-10);
  }
}

TEST(OnesOwn, OpsMayStandBetweenSplitLogitsAndTheirLoss) {
  expect_near(interpret_own(2, {{"tp", "2"}, {"scaled", "true"}}), interpret_own(1, {{"scaled", "true"}}), 1e-10);
}

// Checks the sensitivity of the tests above: a wrong factor in any reduction changes the losses.
TEST(MeaningMutated, AWrongFactorInAnyReductionShows) {
  const Settings exact = {{"strategy", "zero3"}, {"dtype", "f64"}, {"optimizer", "sgd"}, {"lr", "0.5"},
                          {"steps", "3"},        {"layers", "1"},  {"width", "12"},      {"context", "5"}};
  const std::unique_ptr<Device> device = open_device("reference");
  const Job right = parity_job(2, exact, "reference");
  const std::vector<double> expected = losses_of(run_virtual_ranks(right, *device));
  int reductions = 0;
  const std::vector<Stream>& streams = right.classes[0].step().streams;
  for (size_t s = 0; s < streams.size(); s++) {
    for (size_t i = 0; i < streams[s].ops.size(); i++) {
      if (!streams[s].ops[i].is(ops::reduce_scatter)) continue;
      reductions++;
      Job wrong = right;
      wrong.classes[0].step().streams[s].ops[i].attrs.set("op", std::string("sum"));
      const std::vector<double> losses = losses_of(run_virtual_ranks(wrong, *device));
      EXPECT_GT(std::abs(losses.back() - expected.back()), 1e-6) << "reduction " << i << " of " << streams[s].name;
    }
  }
  EXPECT_EQ(reductions, 3) << "embedding, block, head";
}

TEST(MeaningBitwise, Ddp_and_zero3_agree) {
  for (const int ranks : {2, 3, 4}) {
    const Settings settings = {{"steps", "6"}};
    EXPECT_EQ(interpret(ranks, with(settings, {{"strategy", "ddp"}})),
              interpret(ranks, with(settings, {{"strategy", "zero3"}})))
        << ranks << " ranks";
  }
}

TEST(MeaningBitwise, TheOrderOfReadyOpsDoesNotMatter) {
  for (const char* strategy : {"ddp", "zero3"}) {
    const Job job = parity_job(3, {{"strategy", strategy}, {"steps", "3"}, {"clip", "1"}});
    const std::unique_ptr<Device> device = open_device("cpu");
    const VirtualRun first = run_virtual_ranks(job, *device, {.order = VirtualOrder::early});
    for (const VirtualOptions& options :
         {VirtualOptions{.order = VirtualOrder::late}, VirtualOptions{.order = VirtualOrder::random, .seed = 1},
          VirtualOptions{.order = VirtualOrder::random, .seed = 2}}) {
      const VirtualRun other = run_virtual_ranks(job, *device, options);
      EXPECT_EQ(losses_of(other), losses_of(first)) << strategy;
      for (size_t rank = 0; rank < first.persistent.size(); rank++) {
        for (size_t b = 0; b < first.persistent[rank].size(); b++) {
          EXPECT_EQ(other.persistent[rank][b].bytes, first.persistent[rank][b].bytes)
              << strategy << ", rank " << rank << ", " << first.persistent[rank][b].name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace prun::test
