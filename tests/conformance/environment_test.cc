// Items 9 and 10: machines with fewer resources, delayed calls, and the CPU use of waiting ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <random>

#include "tests/conformance/case.h"
#include "tests/conformance/rank_bodies.h"

namespace prun::testing {
namespace {

// Connects after `poorer` has reduced the machine's resources.
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

// Returns "" if it works, or every rank reports the reason in time; otherwise the failed reports.
std::string unsaid(const std::vector<RankReport>& reports) {
  for (const RankReport& report : reports) {
    bool said = report.text.rfind("Exit ", 0) == 0 || report.text.rfind("Aborted: ", 0) == 0;
    if ((report.status != 0 && !said) || report.seconds > 30) return failures(reports);
  }
  return "";
}

// Four ranks may need more than these few.
TEST(Environment, FewDescriptors) {
  for (rlim_t most : {32, 64}) {
    auto reports = run_poor(4, [most] {
      rlimit few{most, most};
      setrlimit(RLIMIT_NOFILE, &few);
    });
    EXPECT_EQ(unsaid(reports), "") << most;
  }
}

// Mounts 64 MB in its own namespace, as containers do. Returns 0 or the errno of a forbidden call.
int shrink_shared_memory() {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return errno;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
  return mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m") != 0 ? errno : 0;
}

// Four ranks with 32 MiB each exceed it: their memory is located elsewhere, or they report that there is too little.
TEST(Environment, SmallSharedMemory) {
  LocalJob outer;
  auto tried = run_ranks(outer, [](LocalBootstrap&) -> std::string {
    int error = shrink_shared_memory();
    if (error != 0) return std::string("not permitted: ") + std::strerror(error);
    return unsaid(run_connected(4, [](Rank& rank) -> std::string {
      std::memset(rank.arena, rank.index, static_cast<size_t>(kArenaBytes));
      all_reduce(rank.world.communicator(all_ranks(4), 0), 100000);
      return "";
    }));
  });
  if (tried[0].text.rfind("not permitted", 0) == 0)
    GTEST_SKIP() << "64 MB of /dev/shm: mounting it is " << tried[0].text;
  EXPECT_EQ(failures(tried), "");
}

// Rejects the calls that seccomp profiles of containers reject: access to another process.
bool forbid_ptrace() {
  constexpr auto kRefuse = SECCOMP_RET_ERRNO | EPERM;
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 4, 0),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 3, 0),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 2, 0),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 1, 0),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
                          BPF_STMT(BPF_RET | BPF_K, kRefuse)};
  sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  prctl(PR_SET_DUMPABLE, 0);
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Environment, NoPtrace) {
  auto reports = run_poor(3, [] {
    if (!forbid_ptrace()) throw Error(Exit::usage, "seccomp is not there");
  });
  if (failures(reports).find("seccomp is not there") != std::string::npos)
    GTEST_SKIP() << "no ptrace: this kernel has no seccomp filters";
  EXPECT_EQ(failures(reports), "");
}

// A layer between core and plugin that delays each call by the rank's seed.
prun_transport g_plugin{};
thread_local std::mt19937 g_delays;

void delay() {
  if (g_delays() % 16 == 0) usleep(g_delays() % 1000);
}

void put_delays(prun_transport& table) {
  g_plugin = table;
  table.connect = [](prun_ctx* c, const void* const* blobs, const size_t* bytes, prun_result* result) {
    return delay(), g_plugin.connect(c, blobs, bytes, result);
  };
  table.batch = [](prun_ctx* c, const prun_p2p* ops, size_t n, prun_queue queue, prun_req** req, prun_result* result) {
    return delay(), g_plugin.batch(c, ops, n, queue, req, result);
  };
  table.test = [](prun_ctx* c, prun_req* req, prun_result* result) { return delay(), g_plugin.test(c, req, result); };
  if (table.coll == nullptr) return;
  table.coll = [](prun_ctx* c, prun_comm* comm, const prun_coll_params* params, prun_queue queue, prun_req** req,
                  prun_result* result) { return delay(), g_plugin.coll(c, comm, params, queue, req, result); };
}

TEST(Delays, ChangeNoResult) {
  for (unsigned seed = 1; seed <= (suite().whole ? 10u : 2u); ++seed) {
    LocalJob job;
    job.ranks = 4;
    auto reports = run_ranks(job, [seed](LocalBootstrap& bootstrap) -> std::string {
      g_delays.seed(seed * 100 + static_cast<unsigned>(bootstrap.rank()));
      WorldOptions options = suite().options(bootstrap);
      options.adapt = put_delays;
      std::unique_ptr<World> world = World::open(options, bootstrap);
      char* arena = static_cast<char*>(world->allocate(kArenaBytes));
      world->connect();
      Rank rank{bootstrap, *world, arena, bootstrap.rank(), bootstrap.ranks()};
      Communicator& all = world->communicator(all_ranks(4), 0);
      std::string failed;
      for (int i = 0; i < 100 && failed.empty(); ++i) {
        Case c;
        c.call.kind = static_cast<CollKind>(i % 8);
        c.call.count = i % 9 == 0 ? 50000 : i * 7;
        c.in_arena = i % 2 == 0;
        failed += run_case(rank, all, c);
      }
      if (failed.empty()) bootstrap.barrier();
      return failed;
    });
    EXPECT_EQ(failures(reports), "") << "seed " << seed;
  }
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// The minimum of several waits, because other processes and cold caches only add CPU time.
TEST(Idle, WaitingCostsNoCore) {
  EXPECT_EQ(failures(run_connected(3,
                                   [](Rank& rank) -> std::string {
                                     constexpr double kShare = 0.02;
                                     Communicator& all = rank.world.communicator(all_ranks(3), 0);
                                     all_reduce(all, 1000);
                                     double least = 1;
                                     for (int wait = 0; wait < 3; ++wait) {
                                       if (rank.index == 2) usleep(500'000);
                                       const double before = cpu_seconds(), start = now_s();
                                       all_reduce(all, 1000);
                                       least = std::min(least, (cpu_seconds() - before) / (now_s() - start));
                                     }
                                     if (rank.index == 2 || least < kShare) return "";
                                     return fmt::format("used {:.1f} % of a core while it waited, {:.0f} % are allowed",
                                                        least * 100, kShare * 100);
                                   })),
            "");
}

}  // namespace
}  // namespace prun::testing
