// Items 9 and 10: machines with less than ours, and ranks that wait without heating theirs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/conformance/case.h"

namespace prun::testing {
namespace {

void all_reduce(Communicator& group, int64_t count) {
  std::vector<float> x(static_cast<size_t>(count), 1.0f);
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.send = call.recv = x.data();
  call.count = count;
  group.run(call);
}

// Connects only now, with what `poorer` has left of the machine.
std::vector<RankReport> run_poor(int ranks, const std::function<void()>& poorer) {
  LocalJob job;
  job.ranks = ranks;
  job.timeout_s = 40;
  return run_ranks(job, [&](LocalBootstrap& bootstrap) -> std::string {
    poorer();
    std::unique_ptr<World> world = World::open(suite().options(bootstrap), bootstrap);
    world->connect();
    Communicator& all = world->communicator(all_ranks(ranks), 0);
    for (int64_t count : {1, 1000, 100000}) {
      for (int repeat = 0; repeat < 10; ++repeat) all_reduce(all, count);
    }
    bootstrap.barrier();
    return "";
  });
}

TEST(Environment, EightRanksOnOneCore) {
  EXPECT_EQ(failures(run_poor(8,
                              [] {
                                cpu_set_t all, one;
                                sched_getaffinity(0, sizeof all, &all);
                                CPU_ZERO(&one);
                                for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
                                  if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
                                }
                                sched_setaffinity(0, sizeof one, &one);
                              })),
            "");
}

// Four ranks may need more than these few, but then every rank says so.
TEST(Environment, FewDescriptors) {
  auto reports = run_poor(4, [] {
    rlimit few{32, 32};
    setrlimit(RLIMIT_NOFILE, &few);
  });
  for (const RankReport& report : reports) {
    bool said = report.text.rfind("Exit ", 0) == 0 || report.text.rfind("Aborted: ", 0) == 0;
    EXPECT_TRUE(report.status == 0 || said) << failures(reports);
    EXPECT_LT(report.seconds, 30) << failures(reports);
  }
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

TEST(Idle, WaitingCostsNoCore) {
  EXPECT_EQ(failures(run_connected(3,
                                   [](Rank& rank) -> std::string {
                                     constexpr double kShare = 0.02;
                                     Communicator& all = rank.world.communicator(all_ranks(3), 0);
                                     all_reduce(all, 1000);
                                     if (rank.index == 2) usleep(1000000);
                                     double before = cpu_seconds(), start = now_s();
                                     all_reduce(all, 1000);
                                     double share = (cpu_seconds() - before) / (now_s() - start);
                                     if (rank.index == 2 || share < kShare) return "";
                                     return fmt::format("used {:.1f} % of a core while it waited, {:.0f} % are allowed",
                                                        share * 100, kShare * 100);
                                   })),
            "");
}

}  // namespace
}  // namespace prun::testing
