// Item 7: whoever survives a fault returns in time and says which rank it was.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tests/conformance/case.h"

namespace prun::testing {
namespace {

constexpr double kDeadline = 2;

void all_reduce(Communicator& group, int64_t count) {
  std::vector<float> x(static_cast<size_t>(count), 1.0f);
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.send = call.recv = x.data();
  call.count = count;
  group.run(call);
}

ConnectedJob job_of(int ranks, bool abort_on_death) {
  ConnectedJob job;
  job.local.ranks = ranks;
  job.local.timeout_s = 15;
  job.local.abort_on_death = abort_on_death;
  job.deadline_s = kDeadline;
  return job;
}

// Gives an address, and is not there any more when it is called.
class DiesAfterJoining : public Bootstrap {
 public:
  explicit DiesAfterJoining(Bootstrap& inner) : inner_(inner) {}
  std::vector<std::string> all_gather(const std::string& blob) override {
    inner_.all_gather(blob);
    raise(SIGKILL);
    return {};
  }
  bool aborted() const override { return false; }

 private:
  Bootstrap& inner_;
};

class Killed : public ::testing::TestWithParam<std::tuple<int, int64_t>> {};

// With a launcher that tells the others, as in real life.
TEST_P(Killed, SurvivorsNameTheRank) {
  auto [ranks, count] = GetParam();
  auto reports = run_connected(job_of(ranks, true), [count = count](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
    for (int i = 0;; ++i) {
      if (rank.index == rank.size - 1 && i == 5) kill(getpid(), SIGKILL);
      all_reduce(all, count);
    }
  });
  int victim = ranks - 1;
  EXPECT_EQ(reports[static_cast<size_t>(victim)].status, 128 + SIGKILL);
  for (int r = 0; r < victim; ++r) {
    const RankReport& report = reports[static_cast<size_t>(r)];
    EXPECT_NE(report.text.find(fmt::format("rank {}", victim)), std::string::npos)
        << "rank " << r << ": " << report.text;
    EXPECT_LT(report.seconds - reports[static_cast<size_t>(victim)].seconds, kDeadline + 1) << report.text;
  }
}
INSTANTIATE_TEST_SUITE_P(InAnAllReduce, Killed,
                         ::testing::Values(std::tuple{2, 10}, std::tuple{3, 10}, std::tuple{5, 200000}));

// Without one: the plugin notices, or the deadline does.
TEST(Faults, NobodyTellsOfADeath) {
  auto reports = run_connected(job_of(2, false), [](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator(all_ranks(2), 0);
    all_reduce(all, 10);
    if (rank.index == 1) kill(getpid(), SIGKILL);
    all_reduce(all, 1000);
    return "went on";
  });
  EXPECT_NE(reports[0].text.find("rank 1"), std::string::npos) << reports[0].text;
  EXPECT_NE(reports[0].text.find("Exit 1"), std::string::npos) << reports[0].text;  // 11 or 14
  EXPECT_LT(reports[0].seconds - reports[1].seconds, kDeadline + 1);
}

TEST(Faults, AStoppedRankIsAHang) {
  ConnectedJob job = job_of(3, true);
  job.local.timeout_s = kDeadline + 3;
  auto reports = run_connected(job, [](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator(all_ranks(3), 0);
    all_reduce(all, 10);
    if (rank.index == 2) raise(SIGSTOP);
    all_reduce(all, 10);
    return "went on";
  });
  std::string texts = reports[0].text + reports[1].text;
  EXPECT_NE(texts.find("no progress for 2.0 s, waiting for rank"), std::string::npos) << texts;
  EXPECT_NE(texts.find("waiting for rank 2"), std::string::npos) << texts;
  EXPECT_EQ(reports[2].status, 128 + SIGKILL);
  for (int r : {0, 1})
    EXPECT_LT(reports[static_cast<size_t>(r)].seconds, kDeadline + 1.5) << reports[static_cast<size_t>(r)].text;
}

TEST(Faults, ARankThatIsGoneBeforeConnecting) {
  LocalJob job = job_of(2, false).local;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    WorldOptions options = suite().options(bootstrap);
    options.deadline_s = kDeadline;
    DiesAfterJoining dying(bootstrap);
    auto world = World::open(options, bootstrap.rank() == 1 ? static_cast<Bootstrap&>(dying) : bootstrap);
    world->connect();
    all_reduce(world->communicator({0, 1}, 0), 10);
    return "went on";
  });
  EXPECT_NE(reports[0].text.find("rank 1"), std::string::npos) << reports[0].text;
  EXPECT_LT(reports[0].seconds, kDeadline + 2);
}

TEST(Faults, ALateRankIsWaitedFor) {
  EXPECT_EQ(failures(run_connected(3,
                                   [](Rank& rank) -> std::string {
                                     Communicator& all = rank.world.communicator(all_ranks(3), 0);
                                     if (rank.index == 1) usleep(300000);
                                     all_reduce(all, 5000);
                                     return "";
                                   })),
            "");
}

TEST(Faults, AbortEndsWhatIsUnderWay) {
  auto reports = run_connected(job_of(3, false), [](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator(all_ranks(3), 0);
    all_reduce(all, 10);
    if (rank.index == 2) {  // stays away until the others are through
      rank.bootstrap.barrier();
      return "";
    }
    std::thread other([&] {
      usleep(100000);
      rank.world.abort();
      rank.world.abort();
    });
    double start = now_s();
    std::string text = "went on";
    try {
      all_reduce(all, 10);
    } catch (const Aborted&) {
      text = now_s() - start < 1 ? "" : "too late";
    } catch (const Error& error) {
      text = error.what();
    }
    other.join();
    rank.bootstrap.barrier();
    return text;
  });
  EXPECT_EQ(failures(reports), "");
}

}  // namespace
}  // namespace prun::testing
