// When a waiting rank yields its core: after a yield that a computing rank made long, it pauses yielding. A long yield
// that delivered much more data than was waited for does not count.
#include <gtest/gtest.h>
#include <prun/sdk/yields.h>

namespace prun::sdk {
namespace {

constexpr uint64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;

TEST(Yields, PayWhileTheyAreShort) {
  Yields yields;
  uint64_t now = kMillisecond;
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(yields.pay(now));
    yields.took(now, now + 20 * kMicrosecond);
    now += 20 * kMicrosecond;
  }
}

TEST(Yields, DoNotForAWhileAfterALongOne) {
  Yields yields;
  uint64_t now = kMillisecond;
  yields.took(now, now + 3 * kMillisecond);
  now += 3 * kMillisecond;
  EXPECT_FALSE(yields.pay(now));
  EXPECT_FALSE(yields.pay(now + 3 * kMillisecond));
  EXPECT_TRUE(yields.pay(now + 4 * kMillisecond));
}

TEST(Yields, TheWhileGrowsWhileTheyStayLong) {
  Yields yields;
  uint64_t now = kMillisecond, last = 0;
  for (int i = 0; i < 8; ++i) {
    yields.took(now, now + 3 * kMillisecond);
    now += 3 * kMillisecond;
    uint64_t pause = 0;
    while (!yields.pay(now + pause)) pause += kMillisecond;
    EXPECT_EQ(pause, i == 0 ? 4 * kMillisecond : std::min(2 * last, 64 * kMillisecond));
    last = pause;
    now += pause;
  }
  now += 200 * kMillisecond;  // short yields meanwhile
  yields.took(now, now + 3 * kMillisecond);
  EXPECT_FALSE(yields.pay(now + 6 * kMillisecond));
  EXPECT_TRUE(yields.pay(now + 7 * kMillisecond));
}

// By the next wait much more has arrived than was waited for: the ranks that had the core were ahead, not computing.
TEST(CountedYields, PayAfterALongOneThatBroughtMuch) {
  CountedYields yields;
  uint64_t now = kMillisecond;
  ASSERT_TRUE(yields.pay(now, 100));
  yields.took(now, now + 3 * kMillisecond, 100);
  now += 4 * kMillisecond;
  EXPECT_TRUE(yields.pay(now, 150));
  EXPECT_TRUE(yields.pay(now + kMillisecond, 150)) << "judged once";
}

TEST(CountedYields, DoNotForAWhileAfterALongOneThatBroughtLittle) {
  for (const uint64_t brought : {uint64_t{0}, uint64_t{3}}) {
    CountedYields yields;
    uint64_t now = kMillisecond;
    yields.took(now, now + 3 * kMillisecond, 100);
    now += 3 * kMillisecond;
    EXPECT_FALSE(yields.pay(now, 100 + brought));
    EXPECT_FALSE(yields.pay(now + 3 * kMillisecond, 100 + brought + 50)) << "what comes later is no sign";
    EXPECT_TRUE(yields.pay(now + 4 * kMillisecond, 100 + brought + 50));
  }
}

}  // namespace
}  // namespace prun::sdk
