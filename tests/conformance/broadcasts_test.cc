// Items 3 and 8 for broadcasts, which compare calls later: no rank is blocked, long waits change no result, and ranks
// whose calls differ get an error although no rank waits for the next one.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "tests/conformance/case.h"

namespace prun::testing {
namespace {

CollCall broadcast(std::vector<float>& data, int root) {
  CollCall call;
  call.kind = CollKind::broadcast;
  call.count = std::ssize(data);
  call.root = root;
  call.send = call.recv = data.data();
  return call;
}

bool native(Communicator& all, const CollCall& call) { return std::string(all.path_of(call).algorithm) == "native"; }

TEST(Broadcasts, RootIsAhead) {
  EXPECT_EQ(failures(run_connected(4,
                                   [](Rank& rank) -> std::string {
                                     Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
                                     std::vector<float> data(16);
                                     const CollCall call = broadcast(data, 0);
                                     all.run(call);
                                     if (native(all, call)) return "";  // the plugin's own may wait
                                     if (rank.index > 0) rank.bootstrap.barrier();
                                     for (int i = 0; i < 30; ++i) {
                                       if (rank.index == 0) data.assign(16, static_cast<float>(i));
                                       all.run(call);
                                       if (data != std::vector<float>(16, static_cast<float>(i)))
                                         return fmt::format("broadcast {} brought {}", i, data[0]);
                                     }
                                     if (rank.index == 0) rank.bootstrap.barrier();
                                     return "";
                                   })),
            "");
}

// Waits until hints are sent, between calls of all other kinds, in groups where neighbours do and do not exchange data;
// with sizes that do and do not need a message after the frame.
std::string with_long_waits(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  const int right = (rank.index + 1) % rank.size, left = (rank.index + rank.size - 1) % rank.size;
  std::string failed;
  for (const size_t count : {8, 5000}) {
    for (int turn = 0; turn < 2 * rank.size; ++turn) {
      const int root = turn / 2 % rank.size;
      const auto value = static_cast<float>(turn + 1);
      std::vector<float> data(count, rank.index == root ? value : 0);
      if (rank.index == root) usleep(turn % 2 == 0 ? 450000 : 0);
      all.run(broadcast(data, root));
      if (data != std::vector<float>(count, value)) failed += fmt::format("turn {} brought {}\n", turn, data[0]);
      if (turn % 3 == 0) {
        const std::vector<float> mine(count, static_cast<float>(rank.index));
        all.send_recv(right, mine.data(), std::ssize(mine) * 4, left, data.data(), std::ssize(data) * 4);
        if (data != std::vector<float>(count, static_cast<float>(left))) failed += "another message came\n";
      }
      if (turn % 3 == 1) {
        Case c;
        c.call.kind = CollKind::all_reduce;
        c.call.count = std::ssize(data);
        failed += run_case(rank, all, c);
      }
    }
  }
  return failed;
}

class LongWaits : public ::testing::TestWithParam<int> {};
TEST_P(LongWaits, ChangeNothing) { EXPECT_EQ(failures(run_connected(GetParam(), with_long_waits)), ""); }
INSTANTIATE_TEST_SUITE_P(Ranks, LongWaits, ::testing::Values(2, 3, 4));

// Runs 200 broadcasts per rank, from the root that `root_of` returns for it, unless an error ends them before.
std::string disagreement(int ranks, size_t count, const std::function<int(int)>& root_of) {
  ConnectedJob job;
  job.local.ranks = ranks;
  const auto reports = run_connected(job, [&](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
    std::vector<float> data(count);
    for (int i = 0; i < 200; ++i) all.run(broadcast(data, root_of(rank.index)));
    return "was given data";
  });
  const std::string texts = failures(reports);
  std::string wrong;
  if (texts.find("was given data") != std::string::npos) wrong += "nobody noticed; ";
  if (texts.find("Exit 12: ") == std::string::npos) wrong += "no mismatch; ";
  for (int r = 0; r < ranks; ++r)
    if (texts.find(fmt::format("broadcast f32[{}] root {}", count, root_of(r))) == std::string::npos)
      wrong += fmt::format("rank {}'s call is not named; ", r);
  for (const RankReport& report : reports)
    if (report.seconds > 5) wrong += fmt::format("only after {:.1f} s; ", report.seconds);
  return wrong.empty() ? "" : wrong + texts;
}

TEST(MisuseOfBroadcast, EachTakesItselfForTheRoot) {
  for (const size_t count : {8, 5000}) EXPECT_EQ(disagreement(2, count, [](int rank) { return rank; }), "");
}
TEST(MisuseOfBroadcast, EachWaitsForTheOther) {
  for (const size_t count : {8, 5000}) EXPECT_EQ(disagreement(2, count, [](int rank) { return 1 - rank; }), "");
}
// Neighbours with equal roots each wait for a rank of the other pair, and would send each other data.
TEST(MisuseOfBroadcast, PairsWaitForEachOther) {
  for (const size_t count : {8, 5000}) EXPECT_EQ(disagreement(4, count, [](int rank) { return rank < 2 ? 3 : 1; }), "");
}

}  // namespace
}  // namespace prun::testing
