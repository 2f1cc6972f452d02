// Item 7: the survivors of a fault return in time and name the rank.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>

#include "comm/transport/transport_session.h"
#include "tests/conformance/rank_bodies.h"
#include "tests/conformance/raw.h"

namespace prun::testing {
namespace {

constexpr double kDeadline = 2;

ConnectedJob job_of(int ranks, bool abort_on_death) {
  ConnectedJob job;
  job.local.ranks = ranks;
  job.local.timeout_s = 15;
  job.local.abort_on_death = abort_on_death;
  job.deadline_s = kDeadline;
  return job;
}

// Gives an address, and dies before it connects.
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

// Gives an address once `leaving`, then only waits for the others to end.
class AbsentAfterJoining : public Bootstrap {
 public:
  explicit AbsentAfterJoining(LocalBootstrap& inner) : inner_(inner) {}
  bool leaving = false;
  std::vector<std::string> all_gather(const std::string& blob) override {
    std::vector<std::string> all = inner_.all_gather(blob);
    if (!leaving) return all;
    inner_.barrier();
    throw Aborted("the others are through");
  }
  bool aborted() const override { return false; }

 private:
  LocalBootstrap& inner_;
};

// Returns an error if a survivor did not name the dead rank, or was late; "" otherwise. `victim` is a rank that has
// ended.
std::string untold(const std::vector<RankReport>& reports, int survivor, int victim, double limit) {
  const RankReport &told = reports[static_cast<size_t>(survivor)], &dead = reports[static_cast<size_t>(victim)];
  if (told.text.find(fmt::format("rank {}", victim)) == std::string::npos)
    return fmt::format("rank {} died, and rank {} was told: {}\n", victim, survivor, told.text);
  if (told.seconds - dead.seconds > limit)
    return fmt::format("rank {} died, and rank {} was told {:.1f} s later, {} s are allowed\n", victim, survivor,
                       told.seconds - dead.seconds, limit);
  return "";
}

class Killed : public ::testing::TestWithParam<std::tuple<int, int64_t>> {};

// With a launcher that informs the others, as in production.
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
  std::string words;
  for (int r = 0; r < victim; ++r) words += untold(reports, r, victim, kDeadline + 1);
  EXPECT_EQ(words, "");
}
INSTANTIATE_TEST_SUITE_P(InAnAllReduce, Killed,
                         ::testing::Values(std::tuple{2, 10}, std::tuple{3, 10}, std::tuple{5, 200000}));

// Without one: the plugin detects the death, or the deadline does.
TEST(Faults, NobodyTellsOfADeath) {
  auto reports = run_connected(job_of(2, false), [](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator(all_ranks(2), 0);
    all_reduce(all, 10);
    if (rank.index == 1) kill(getpid(), SIGKILL);
    all_reduce(all, 1000);
    return "went on";
  });
  EXPECT_EQ(untold(reports, 0, 1, kDeadline + 1), "");
  EXPECT_NE(reports[0].text.find("Exit 1"), std::string::npos) << reports[0].text;  // 11 or 14
}

// The plugin's own report: none, an unnamed rank is gone, or the right one is.
TEST(Faults, ADeathIsBlamedOnTheDead) {
  ConnectedJob job = job_of(3, false);
  job.local.ranks = 3;
  auto reports = run_ranks(job.local, [](LocalBootstrap& bootstrap) -> std::string {
    const WorldOptions options = suite().options(bootstrap);
    const std::unique_ptr<TransportSession> session = open_raw(bootstrap, options);
    join_and_connect(*session, options, bootstrap);
    Raw raw{bootstrap, *session, bootstrap.rank(), bootstrap.ranks()};
    bootstrap.barrier();
    if (raw.rank == 1) kill(getpid(), SIGKILL);
    int data = 0;
    prun_result result = empty_result();
    prun_req* req = raw.post({Raw::recv(1, 0, &data, sizeof data)});
    prun_status status = PRUN_AGAIN;
    for (const double end = now_s() + 1; status == PRUN_AGAIN && now_s() < end;) status = session->test(req, result);
    if (raw.rank == 0) usleep(200000);  // a leaving rank would be a second dead one
    if (status == PRUN_AGAIN || (status == PRUN_EPEER && (result.culprit == 1 || result.culprit == -1))) _exit(0);
    return status == PRUN_EPEER ? fmt::format("rank 1 died, the plugin blamed rank {}", result.culprit)
                                : fmt::format("rank 1 died, the plugin said: {}", status_text(status, result));
  });
  reports[1] = {};  // the dead one
  EXPECT_EQ(failures(reports), "");
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
  const bool named = texts.find("no progress for 2.0 s, waiting for rank 2") != std::string::npos;
  EXPECT_EQ(named ? "" : "rank 2 was stopped, and the others were told: " + texts, "");
  for (int r : {0, 1})
    EXPECT_LT(reports[static_cast<size_t>(r)].seconds, kDeadline + 1.5)
        << "rank 2 was stopped, and rank " << r << " waited too long: " << reports[static_cast<size_t>(r)].text;
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
  EXPECT_EQ(untold(reports, 0, 1, kDeadline + 2), "");
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

// It gives its address and then does nothing until the others give up.
TEST(Faults, AnAbsentRankIsNamed) {
  LocalJob job = job_of(3, false).local;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    WorldOptions options = suite().options(bootstrap);
    options.deadline_s = kDeadline;
    AbsentAfterJoining absent(bootstrap);
    auto world = World::open(options, bootstrap.rank() == 2 ? static_cast<Bootstrap&>(absent) : bootstrap);
    absent.leaving = true;
    try {
      world->connect();
      if (bootstrap.rank() == 2) return "";
      all_reduce(world->communicator({0, 1, 2}, 0), 10);
    } catch (const Error& error) {
      if (bootstrap.rank() == 2) return "";
      bootstrap.barrier();
      return error.what();
    }
    return "went on";
  });
  std::string texts = reports[0].text + reports[1].text;
  const bool named = texts.find("rank 2") != std::string::npos;
  EXPECT_EQ(named ? "" : "rank 2 joined and never connected, and the others were told: " + texts, "");
  for (int r : {0, 1}) EXPECT_LT(reports[static_cast<size_t>(r)].seconds, 2 * kDeadline + 2) << texts;
}

TEST(Faults, ALateJoinerIsWaitedFor) {
  LocalJob job;
  job.ranks = 3;
  EXPECT_EQ(failures(run_ranks(job,
                               [](LocalBootstrap& bootstrap) -> std::string {
                                 if (bootstrap.rank() == 1) usleep(300000);
                                 auto world = World::open(suite().options(bootstrap), bootstrap);
                                 if (bootstrap.rank() == 2) usleep(300000);
                                 world->connect();
                                 all_reduce(world->communicator({0, 1, 2}, 0), 10);
                                 bootstrap.barrier();
                                 return "";
                               })),
            "");
}

TEST(Faults, AbortWhileConnecting) {
  LocalJob job = job_of(2, false).local;
  EXPECT_EQ(failures(run_ranks(job,
                               [](LocalBootstrap& bootstrap) -> std::string {
                                 AbsentAfterJoining absent(bootstrap);
                                 auto world =
                                     World::open(suite().options(bootstrap),
                                                 bootstrap.rank() == 1 ? static_cast<Bootstrap&>(absent) : bootstrap);
                                 absent.leaving = true;
                                 if (bootstrap.rank() == 0) {
                                   std::string text = aborted_in(*world, [&] { world->connect(); });
                                   bootstrap.barrier();
                                   return text;
                                 }
                                 try {
                                   world->connect();
                                 } catch (const Aborted&) {
                                 }
                                 return "";
                               })),
            "");
}

TEST(Faults, AbortEndsASend) {
  EXPECT_EQ(failures(run_connected(job_of(2, false),
                                   [](Rank& rank) -> std::string {
                                     Communicator& all = rank.world.communicator(all_ranks(2), 0);
                                     all_reduce(all, 10);
                                     std::string text;
                                     std::vector<char> data(8 << 20);
                                     if (rank.index == 0)
                                       text = aborted_in(rank.world, [&] {
                                         all.send_recv(1, data.data(), static_cast<int64_t>(data.size()), -1, nullptr,
                                                       0);
                                       });
                                     rank.bootstrap.barrier();
                                     return text;
                                   })),
            "");
}

TEST(Faults, AbortEndsWhatIsUnderWay) {
  const auto reports = run_connected(job_of(3, false), [](Rank& rank) { return aborted_under_way(rank, 2, 10); });
  EXPECT_EQ(failures(reports), "");
}

}  // namespace
}  // namespace prun::testing
