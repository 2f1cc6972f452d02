// Compares learning rates with closed forms, those of PyTorch's LambdaLR with the usual warm-up and decay functions.
#include "ir/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "device/device.h"

namespace prun {
namespace {

TEST(LearningRate, AConstantHasNoWarmup) {
  const LearningRate rate{.peak = 0.5};
  EXPECT_EQ(rate.at(0), 0.5);
  EXPECT_EQ(rate.at(1 << 20), 0.5);
}

TEST(LearningRate, WarmupBeginsAtZeroAndReachesThePeakInItsStep) {
  const LearningRate rate{.peak = 8, .kind = RateKind::warmup, .warmup = 4};
  for (int64_t step = 0; step < 4; step++) EXPECT_EQ(rate.at(step), 2.0 * static_cast<double>(step));
  EXPECT_EQ(rate.at(4), 8);
  EXPECT_EQ(rate.at(1000), 8);
}

TEST(LearningRate, LinearFallsToItsLeastAndStays) {
  const LearningRate rate{.peak = 10, .kind = RateKind::linear, .warmup = 2, .steps = 10, .least = 2};
  const double expected[] = {0, 5, 10, 9, 8, 7, 6, 5, 4, 3, 2, 2, 2};
  for (int64_t step = 0; step < 13; step++) EXPECT_DOUBLE_EQ(rate.at(step), expected[step]) << step;
}

TEST(LearningRate, CosineIsHalfAPeriod) {
  const LearningRate rate{.peak = 3e-4, .kind = RateKind::cosine, .warmup = 100, .steps = 1100};
  EXPECT_DOUBLE_EQ(rate.at(50), 1.5e-4);
  EXPECT_DOUBLE_EQ(rate.at(100), 3e-4);
  EXPECT_DOUBLE_EQ(rate.at(350), 3e-4 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_DOUBLE_EQ(rate.at(600), 1.5e-4);
  EXPECT_NEAR(rate.at(1100), 0, 1e-20);
  EXPECT_NEAR(rate.at(INT64_MAX), 0, 1e-20);
  LearningRate raised = rate;
  raised.least = 1e-4;
  EXPECT_DOUBLE_EQ(raised.at(50), 1.5e-4) << "the warm-up is not raised";
  EXPECT_DOUBLE_EQ(raised.at(600), 2e-4);
  EXPECT_DOUBLE_EQ(raised.at(5000), 1e-4);
}

TEST(LearningRate, AWarmupMayTakeAllSteps) {
  for (const RateKind kind : {RateKind::linear, RateKind::cosine}) {
    const LearningRate rate{.peak = 1, .kind = kind, .warmup = 5, .steps = 5};
    EXPECT_DOUBLE_EQ(rate.at(4), 0.8);
    EXPECT_DOUBLE_EQ(rate.at(5), 1);
    EXPECT_NEAR(rate.at(6), 0, 1e-15);
  }
}

TEST(LearningRate, TheStepTableTakesItFromTheSchedule) {
  const Schedule schedule{.steps = 10, .seed = 7, .learning_rate = {.peak = 10, .kind = RateKind::linear, .steps = 10}};
  StepTable table;
  table.set(schedule, 3);
  EXPECT_EQ(table.step, 3);
  EXPECT_EQ(table.seed, 7u);
  EXPECT_DOUBLE_EQ(table.learning_rate, 7);
}

}  // namespace
}  // namespace prun
