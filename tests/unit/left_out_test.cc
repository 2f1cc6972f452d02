// Tests which samples steps take if some steps are skipped.
#include "ir/left_out.h"

#include <gtest/gtest.h>

namespace prun {
namespace {

std::vector<int64_t> taken_by(const LeftOut& out, int64_t count) {
  std::vector<int64_t> taken;
  for (int64_t index = 0; index < count; ++index) taken.push_back(out.sample_of(index));
  return taken;
}

TEST(LeftOut, StepsTakeTheOthersInTheirOrder) {
  LeftOut out;
  EXPECT_EQ(taken_by(out, 3), (std::vector<int64_t>{0, 1, 2}));
  out.add(4, 6);
  EXPECT_EQ(taken_by(out, 6), (std::vector<int64_t>{0, 1, 2, 3, 6, 7}));
  out.add(1, 2);
  EXPECT_EQ(taken_by(out, 6), (std::vector<int64_t>{0, 2, 3, 6, 7, 8}));
  out.add(2, 5);
  EXPECT_EQ(out.runs, (std::vector<int64_t>{1, 6}));
  EXPECT_EQ(taken_by(out, 3), (std::vector<int64_t>{0, 6, 7}));
  EXPECT_TRUE(out.valid());
}

TEST(LeftOut, OthersAreRefused) {
  for (const std::vector<int64_t>& runs : {std::vector<int64_t>{3}, {4, 2}, {1, INT64_MAX}, {-1, 2}, {2, 2}})
    EXPECT_FALSE(LeftOut{runs}.valid());
}

TEST(LeftOut, IsSaidAsPeopleCount) {
  EXPECT_EQ(run_text("batch", "batches", 2, 3), "batch 3");
  EXPECT_EQ(run_text("batch", "batches", 2, 4), "batches 3-4");
}

}  // namespace
}  // namespace prun
