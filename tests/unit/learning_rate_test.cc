// Compares learning rates with closed forms. plans_test.py compares the curves of Lua with PyTorch's formulas.
#include "ir/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "device/device.h"

namespace prun {
namespace {

TEST(LearningRate, AConstantHasNoPieces) {
  const LearningRate rate{.last = 0.5};
  EXPECT_EQ(rate.at(0), 0.5);
  EXPECT_EQ(rate.at(1 << 20), 0.5);
  EXPECT_EQ(rate.text(), "constant, peak 0.5");
}

TEST(LearningRate, ARiseReachesItsEndInThatStep) {
  const LearningRate rate{.pieces = {{.end = 4, .from = 0, .to = 8}}, .last = 8};
  for (int64_t step = 0; step < 4; step++) EXPECT_EQ(rate.at(step), 2.0 * static_cast<double>(step));
  EXPECT_EQ(rate.at(4), 8);
  EXPECT_EQ(rate.at(1000), 8);
}

TEST(LearningRate, PiecesFollowOneAnother) {
  const LearningRate rate{.pieces = {{.end = 2, .from = 0, .to = 10}, {.end = 10, .from = 10, .to = 2}}, .last = 2};
  const double expected[] = {0, 5, 10, 9, 8, 7, 6, 5, 4, 3, 2, 2, 2};
  for (int64_t step = 0; step < 13; step++) EXPECT_DOUBLE_EQ(rate.at(step), expected[step]) << step;
}

TEST(LearningRate, ACosineIsHalfAPeriodUpOrDown) {
  const LearningRate down{.pieces = {{.shape = RateShape::cosine, .end = 1000, .from = 3e-4, .to = 1e-4}},
                          .last = 1e-4};
  EXPECT_DOUBLE_EQ(down.at(0), 3e-4);
  EXPECT_DOUBLE_EQ(down.at(250), 1e-4 + 2e-4 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_DOUBLE_EQ(down.at(500), 2e-4);
  EXPECT_DOUBLE_EQ(down.at(INT64_MAX), 1e-4);
  const LearningRate up{.pieces = {{.shape = RateShape::cosine, .end = 1000, .from = 1e-4, .to = 3e-4}}, .last = 3e-4};
  for (int64_t step = 0; step <= 1000; step += 50) EXPECT_NEAR(up.at(step) + down.at(step), 4e-4, 1e-18) << step;
}

TEST(LearningRate, AnInverseRootContinuesItsBegin) {
  const LearningRate rate{
      .pieces = {{.end = 100, .from = 0, .to = 2}, {.shape = RateShape::inverse_root, .end = 10000, .from = 2}},
      .last = 0.2};
  EXPECT_DOUBLE_EQ(rate.at(100), 2);
  EXPECT_DOUBLE_EQ(rate.at(400), 1);
  EXPECT_DOUBLE_EQ(rate.at(10000), 0.2);
}

TEST(LearningRate, ValuesAreThoseOfTheirSteps) {
  LearningRate rate{.curve = "a function", .values = {3, 1, 2}, .last = 2};
  EXPECT_EQ(rate.at(0), 3);
  EXPECT_EQ(rate.at(1), 1);
  EXPECT_EQ(rate.at(99), 2);
  EXPECT_EQ(rate.peak(), 3);
  rate.scale(2);
  EXPECT_EQ(rate.at(0), 6);
  EXPECT_EQ(rate.at(5), 4);
}

TEST(LearningRate, TheStepTableTakesItFromTheSchedule) {
  const Schedule schedule{.steps = 10, .seed = 7, .learning_rate = {.pieces = {{.end = 10, .from = 10, .to = 0}}}};
  StepTable table;
  table.set(schedule, 3);
  EXPECT_EQ(table.step, 3);
  EXPECT_EQ(table.seed, 7u);
  EXPECT_DOUBLE_EQ(table.learning_rate, 7);
}

}  // namespace
}  // namespace prun
