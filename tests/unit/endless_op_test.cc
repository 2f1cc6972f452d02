// When an op that no other op waits for has run too long. The flights are written by hand, so no time passes.
#include "watch/endless_op.h"

#include <gtest/gtest.h>

#include "tests/unit/sample_job.h"

namespace prun {
namespace {

constexpr uint64_t kSecond = 1'000'000'000, kNow = 10'000 * kSecond;
constexpr double kLimit = 60;

// Rank 2 of four, which has run op `index` of its compute stream for `seconds`; its gathers are done.
Flight flight_of(uint32_t index, uint64_t seconds, uint32_t running = 1) {
  Flight flight{kNow, 0, {}};
  FlightRank rank;
  rank.rank = 2;
  rank.phase = RunPhase::running;
  rank.process = 'R';
  rank.body = 1;
  rank.beat_ns = kNow - seconds * kSecond;
  rank.alive_ns = kNow;
  rank.streams = {{index, 7, 7, running, rank.beat_ns, {}}, {0, 7, 7, 2, rank.beat_ns, {}}};
  flight.ranks = {rank};
  return flight;
}

std::optional<Hang> look(const Flight& flight, uint64_t since_ns = 0) {
  return endless_op(sample_job(), flight, kLimit, since_ns);
}

TEST(EndlessOpTest, NamesTheRankAndItsOp) {
  EXPECT_FALSE(look(flight_of(1, 59)));
  const std::optional<Hang> hang = look(flight_of(1, 61));
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->holdup.rank, 2);
  EXPECT_EQ(hang->holdup.sentence,
            "rank 2 does not go on: it is computing (linear of fc (forward) at plans/mlp.lua:4) for 61.0 s");
  EXPECT_EQ(hang->holdup.op, "linear of fc (forward) at plans/mlp.lua:4");
}

TEST(EndlessOpTest, BetweenOpsCounts) {
  const std::optional<Hang> hang = look(flight_of(0, 61, 2));
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->holdup.sentence, "rank 2 does not go on: it is between ops for 61.0 s");
}

TEST(EndlessOpTest, DisksAndDevicesHaveTheirOwnTime) {
  EXPECT_FALSE(look(flight_of(0, 600))) << "reading data";
  EXPECT_FALSE(look(flight_of(1, 600, 3))) << "in a replayed graph";
  Flight saving = flight_of(0, 600, 2);
  saving.ranks[0].saving = 40;
  EXPECT_FALSE(look(saving)) << "the last checkpoint is being written";
  saving.ranks[0].saving = 0;
  saving.ranks[0].saving_ns = kNow - kSecond;
  EXPECT_FALSE(look(saving)) << "the save has just failed, and the rank is about to report that";
}

TEST(EndlessOpTest, WhoIsStoppedOrWaitsIsNotMeant) {
  Flight stopped = flight_of(1, 600);
  stopped.ranks[0].process = 'T';
  EXPECT_FALSE(look(stopped));
  Flight waits = flight_of(1, 600, 2);
  waits.ranks[0].streams[1] = {0, 7, 7, 1, waits.ranks[0].beat_ns, {}};
  EXPECT_FALSE(look(waits)) << "in an all_gather";
}

TEST(EndlessOpTest, LargeOpsHaveTwentyTimesAsLong) {
  Job job = sample_job();
  Program& program = job.classes[0];
  program.tensors[4].shape = {1 << 14, 1 << 11};  // x of the linear: 2 * 2^14 * 2^11 * 20 flops, 1.3 s at 1 GFLOP/s
  program.tensors[2].shape = {1 << 11, 20};
  program.tensors[5].shape = {1 << 14, 20};
  EXPECT_FALSE(endless_op(job, flight_of(1, 80), kLimit, 0));
  EXPECT_TRUE(endless_op(job, flight_of(1, 110), kLimit, 0));
}

TEST(EndlessOpTest, TimeBeforeTheLauncherWentOnDoesNotCount) {
  EXPECT_FALSE(look(flight_of(1, 600), kNow - 30 * kSecond));
}

}  // namespace
}  // namespace prun
