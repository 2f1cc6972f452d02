// Ranks that succeed, die, fail and hang, on one node. Every job must end by itself, blame the culprit and leave
// nothing behind.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <new>

#include "launch/failure.h"
#include "launch/preflight.h"
#include "tests/faults/launch_fixture.h"

namespace prun {
namespace {

TEST_F(LaunchTest, AllRanksGetTheJobAndTheirNumbers) {
  int code = run(4, [](const RankStart& start) {
    bool right = start.ranks == 4 && start.local_ranks == 4 && start.rank == start.local_rank &&
                 start.job == "the job" && start.job_hash.size() == 64 && start.job_secret.size() == 32 &&
                 !start.job_id.empty();
    char name[16];
    prctl(PR_GET_NAME, name);
    start.launcher->print(name);
    return right ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(observer.messages, "");
  EXPECT_EQ(observer.ranks, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(observer.lines_of(3), std::vector<std::string>{"prun-rank3"});
  EXPECT_GE(observer.ticks, 1);
}

TEST_F(LaunchTest, OneRankIsForkedToo) {
  int launcher = getpid();
  EXPECT_EQ(run(1, [launcher](const RankStart&) { return getpid() == launcher ? 1 : 0; }), 0);
}

// A job whose messages waited for a tick would see three: at its start, the one waited for, and at its end. A busy
// machine may cause a third one too, but not in each of 40 jobs.
TEST_F(LaunchTest, StartDoesNotWaitForATick) {
  int fewest = 3;
  for (int i = 0; i < 40 && fewest > 2; ++i) {
    const int before = observer.ticks;
    run(2, [](const RankStart& start) { return start.launcher->all_gather("x").size() == 2 ? 0 : 1; });
    fewest = std::min(fewest, observer.ticks - before);
  }
  EXPECT_EQ(fewest, 2);
}

TEST_F(LaunchTest, AllGatherGivesEveryBlobByRank) {
  int code = run(4, [](const RankStart& start) {
    for (int round = 0; round < 20; ++round) {
      std::string mine(static_cast<size_t>(start.rank * 100000),
                       static_cast<char>('a' + round));  // exceeds a socket's buffer
      std::vector<std::string> all = start.launcher->all_gather(mine);
      for (size_t rank = 0; rank < 4; ++rank)
        if (all[rank] != std::string(rank * 100000, static_cast<char>('a' + round))) return 1;
    }
    return 0;
  });
  EXPECT_EQ(code, 0) << observer.messages;
}

TEST_F(LaunchTest, RecordersAreSharedAndReadableAfterADeath) {
  options.recorder_bytes = 1 << 20;
  std::string seen;
  observer.on_tick = [&] {  // the last tick follows the end of the last process
    seen.clear();
    for (void* recorder : observer.recorders) seen += static_cast<char*>(recorder)[(1 << 20) - 1];
  };
  int code = run(2, [](const RankStart& start) -> int {
    char* last = static_cast<char*>(start.recorder) + (1 << 20) - 1;
    if (*last != 0) return 1;
    *last = static_cast<char>('a' + start.rank);
    start.launcher->all_gather("");
    if (start.rank == 1) raise(SIGKILL);
    return wait_for_abort(start);
  });
  EXPECT_EQ(code, 10);
  EXPECT_EQ(seen, "ab");
}

TEST_F(LaunchTest, LinesAreWholeInOrderAndNoneIsLost) {
  int code = run(3, [](const RankStart& start) {
    for (int i = 0; i < 2000; ++i)
      start.launcher->print(std::to_string(i) + std::string(static_cast<size_t>(i % 100), '.'));
    return 0;
  });
  EXPECT_EQ(code, 0);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<std::string> lines = observer.lines_of(rank);
    ASSERT_EQ(lines.size(), 2000u);
    for (size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(lines[i], std::to_string(i) + std::string(i % 100, '.'));
  }
}

TEST_F(LaunchTest, LinesOfADyingRankArrive) {
  EXPECT_EQ(run(1,
                [](const RankStart& start) -> int {
                  start.launcher->print("last words");
                  raise(SIGKILL);
                  return 0;
                }),
            10);
  EXPECT_EQ(observer.lines_of(0), std::vector<std::string>{"last words"});
}

// When and how the rank dies.
struct Death {
  const char* name;
  int signal;  // 0: _exit(3)
  int gathers_before;
  std::vector<const char*> said;
};
void PrintTo(const Death& death, std::ostream* out) { *out << death.name; }

class RankDeath : public LaunchTest, public testing::WithParamInterface<Death> {};

TEST_P(RankDeath, EndsTheJobAtOnceAndNamesTheCulprit) {
  const Death& death = GetParam();
  int code = run(4, [&](const RankStart& start) -> int {
    for (int round = 0; round < 5; ++round) {
      if (start.rank == 2 && round == death.gathers_before) {
        if (death.signal == 0) _exit(3);
        rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(death.signal, SIG_DFL);  // sanitizers handle SIGSEGV
        raise(death.signal);
      }
      try {
        start.launcher->all_gather("blob");
      } catch (const Error& error) {  // as in a rank's main; this is not the cause
        start.launcher->fail(error, "all_gather");
        return static_cast<int>(error.code());
      }
    }
    return wait_for_abort(start);
  });
  EXPECT_EQ(code, 10);
  EXPECT_LT(seconds, 1.0);
  for (const char* text : death.said) EXPECT_TRUE(said(text)) << text << " in\n" << observer.messages;
  EXPECT_TRUE(said("where:    rank 2 on ")) << observer.messages;
  EXPECT_TRUE(said("pid " + std::to_string(observer.pids[2]))) << observer.messages;
  EXPECT_TRUE(said("op:       op of rank 2 (plan.lua:7)")) << observer.messages;
  EXPECT_TRUE(said("next:     ")) << observer.messages;
  EXPECT_EQ(std::count(observer.messages.begin(), observer.messages.end(), '\n'), 5) << observer.messages;
}

INSTANTIATE_TEST_SUITE_P(
    All, RankDeath,
    testing::Values(Death{"SegvAtStart",
                          SIGSEGV,
                          0,
                          {"prun: rank 2 was killed by SIGSEGV", "Segmentation fault", "ulimit -c unlimited"}},
                    Death{"KillAtStart", SIGKILL, 0, {"prun: rank 2 was killed by SIGKILL", "dmesg"}},
                    Death{"KillLater", SIGKILL, 3, {"prun: rank 2 was killed by SIGKILL"}},
                    Death{"AbortAfterJoin", SIGABRT, 4, {"prun: rank 2 was killed by SIGABRT"}},
                    Death{"TermLater", SIGTERM, 2, {"prun: rank 2 was killed by SIGTERM"}},
                    Death{"ExitAtStart", 0, 0, {"prun: rank 2 ended with exit status 3", "it reported no reason"}},
                    Death{"ExitLater", 0, 3, {"prun: rank 2 ended with exit status 3"}}),
    [](const auto& death) { return death.param.name; });

// The peers detect the broken connection before the launcher detects the death.
TEST_F(LaunchTest, SymptomsOfPeersAreNotTheCause) {
  int code = run(3, [](const RankStart& start) -> int {
    if (start.rank == 1) {
      usleep(20000);
      raise(SIGKILL);
    }
    start.launcher->fail(Error(Exit::transport, "connection reset by rank 1"), "send");
    return 14;
  });
  EXPECT_EQ(code, 10);
  EXPECT_TRUE(said("rank 1 was killed by SIGKILL")) << observer.messages;
  EXPECT_FALSE(said("connection reset")) << observer.messages;
}

TEST_F(LaunchTest, FailEndsTheJobWithItsCodeAndText) {
  int code = run(4, [](const RankStart& start) {
    start.launcher->all_gather("");
    if (start.rank != 3) return wait_for_abort(start);
    start.launcher->fail(Error(Exit::non_finite, "the loss is nan"), "cross_entropy, step 7 (plan.lua:12)");
    return 20;
  });
  EXPECT_EQ(code, 20);
  EXPECT_LT(seconds, 1.0);
  EXPECT_TRUE(said("prun: rank 3: the loss is nan\n")) << observer.messages;
  EXPECT_TRUE(said("op:       cross_entropy, step 7 (plan.lua:12)\n")) << observer.messages;
  EXPECT_TRUE(said("next:     prun plan.lua --nproc 4 --metrics")) << observer.messages;
}

TEST_F(LaunchTest, ExceptionsOfARankAreFailures) {
  EXPECT_EQ(run(2,
                [](const RankStart& start) -> int {
                  if (start.rank == 1) throw Error(Exit::mismatch, "all_reduce against barrier");
                  return wait_for_abort(start);
                }),
            12);
  EXPECT_TRUE(said("rank 1: all_reduce against barrier")) << observer.messages;
  EXPECT_TRUE(said("op of rank 1")) << observer.messages;
  EXPECT_EQ(run(1, [](const RankStart&) -> int { throw std::runtime_error("surprise"); }), 10);
  EXPECT_TRUE(said("rank 0: surprise")) << observer.messages;
}

TEST_F(LaunchTest, OutOfMemoryHasItsCode) {
  EXPECT_EQ(run(2,
                [](const RankStart& start) -> int {
                  if (start.rank == 1) throw std::bad_alloc();
                  return wait_for_abort(start);
                }),
            18);
  EXPECT_TRUE(said("rank 1: an allocation failed")) << observer.messages;
  EXPECT_TRUE(said("predicted memory per rank")) << observer.messages;
}

// A rank that ignores the end of the job is killed together with its child processes, even in another session.
TEST_F(LaunchTest, NobodySurvives) {
  int code = run(2, [](const RankStart& start) -> int {
    signal(SIGTERM, SIG_IGN);
    if (fork() == 0) {
      if (start.rank == 1) setsid();
      if (start.rank == 1 && fork() > 0) _exit(0);
      for (;;) pause();
    }
    start.launcher->all_gather("");
    if (start.rank == 0) raise(SIGKILL);
    for (;;) pause();
  });
  EXPECT_EQ(code, 10);
  EXPECT_LT(seconds, 1.0);
}

TEST_F(LaunchTest, AStoppedRankIsKilledToo) {
  int code = run(2, [](const RankStart& start) -> int {
    start.launcher->all_gather("");
    if (start.rank == 1) raise(SIGSTOP);
    if (start.rank == 0) throw Error(Exit::hang, "no progress");
    return 0;
  });
  EXPECT_EQ(code, 11);
  EXPECT_LT(seconds, 1.0);
}

TEST_F(LaunchTest, RanksThatNeverJoinAreNamed) {
  options.join_timeout_s = 0.2;
  int code = run(4, [](const RankStart& start) -> int {
    if (start.rank == 1 || start.rank == 3)
      for (;;) pause();
    start.launcher->all_gather("");
    return 0;
  });
  EXPECT_EQ(code, 13);
  EXPECT_LT(seconds, 1.5);
  EXPECT_TRUE(said("prun: 2/4 joined within 200.0 ms; missing 1, 3 on ")) << observer.messages;
}

TEST_F(LaunchTest, WhoIsMissingIsToldFromTimeToTime) {
  options.join_report_s = 0.05;
  int code = run(3, [](const RankStart& start) {
    if (start.rank == 1) usleep(200000);
    start.launcher->all_gather("");
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(said("prun: 2/3 joined; missing 1 on ")) << observer.messages;
}

TEST_F(LaunchTest, ARankThatReturnsEarlyIsNamed) {
  int code = run(3, [](const RankStart& start) {
    if (start.rank == 1) return 0;
    start.launcher->all_gather("");
    return 0;
  });
  EXPECT_EQ(code, 13);
  EXPECT_TRUE(said("rank 1 returned while others wait for it in all_gather")) << observer.messages;
}

TEST_F(LaunchTest, SignalsToTheLauncherEndTheJob) {
  for (int number : {SIGINT, SIGTERM}) {
    observer.messages.clear();
    observer.on_started = [number] { kill(getpid(), number); };
    int code = run(4, [](const RankStart&) -> int {
      for (;;) pause();
    });
    EXPECT_EQ(code, 128 + number);
    EXPECT_LT(seconds, 1.0);
    EXPECT_TRUE(said(number == SIGINT ? "prun: ended by SIGINT" : "prun: ended by SIGTERM")) << observer.messages;
  }
}

// The launcher cannot clean up any more. This process becomes the subreaper, so that it observes the ranks' end.
TEST_F(LaunchTest, RanksEndWithAKilledLauncher) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  enum { computing, joined, stopped };  // state of the ranks; joined: they wait for the launcher
  for (int state : {computing, joined, stopped}) {
    int ready[2];
    ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
    pid_t launcher = fork();
    if (launcher == 0) {
      run(4, [&](const RankStart& start) -> int {
        if (start.rank % 2) prctl(PR_SET_PDEATHSIG, 0);  // only the lifeline is left
        if (fork() == 0) {                               // PR_SET_PDEATHSIG does not apply to this child
          if (state == stopped) kill(getppid(), SIGSTOP);
          if (write(ready[1], "x", 1) != 1) _exit(1);
          for (;;) pause();
        }
        if (state == joined || start.rank != 3) start.launcher->all_gather("");
        for (;;) pause();
      });
      _exit(0);
    }
    char bytes[4];
    for (char& byte : bytes) ASSERT_EQ(read(ready[0], &byte, 1), 1);
    kill(launcher, SIGKILL);
    alarm(20);  // otherwise a survivor would block this test forever
    int ended = 0;
    EXPECT_LT(seconds_of([&] {
                while (waitpid(-1, nullptr, 0) > 0) ++ended;
              }),
              1.0);
    alarm(0);
    EXPECT_EQ(ended, 1 + 4 + 4);
    for (int fd : ready) close(fd);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// The kernel's counters, as files in a folder of the test.
TEST(OomWatch, TellsAKillForMemoryFromOthers) {
  namespace fs = std::filesystem;
  struct Case {
    const char *cgroup, *counter;
  };
  for (const Case& each :
       {Case{"0::/job\n", "sys/fs/cgroup/job/memory.events"},
        Case{"7:memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control"}, Case{"0::/\n", "proc/vmstat"}}) {
    fs::path root = fs::path(testing::TempDir()) / ("oom" + std::to_string(getpid()));
    auto write = [&root](const std::string& path, const std::string& text) {
      fs::create_directories((root / path).parent_path());
      std::ofstream(root / path) << text;
    };
    write("proc/self/cgroup", each.cgroup);
    write(each.counter, "low 0\noom 3\noom_kill 3\n");
    OomWatch watch(root.string());
    EXPECT_FALSE(watch.killed_since());
    write(each.counter, "low 0\noom 9\noom_kill 3\n");
    EXPECT_FALSE(watch.killed_since());
    write(each.counter, "low 0\noom 9\noom_kill 4\n");
    EXPECT_TRUE(watch.killed_since());
    EXPECT_FALSE(watch.killed_since());
    fs::remove_all(root);
  }
}

TEST(FailureText, SaysThatMemoryRanOut) {
  RankEnd end{.killed = true, .status = SIGKILL, .out_of_memory = true, .after_s = 3};
  Failure failure =
      rank_ended({.rank = 5, .pid = 77, .host = "host-a"}, end, "matmul (plan.lua:3)", "plan.lua --nproc 8");
  EXPECT_EQ(failure.code, 18);
  EXPECT_EQ(render(failure),
            "prun: rank 5 was killed because memory ran out\n"
            "  where:    rank 5 on host-a, pid 77\n"
            "  op:       matmul (plan.lua:3)\n"
            "  evidence: SIGKILL 3.0 s after the start, and the kernel counted a kill for memory (oom_kill)\n"
            "  next:     prun check plan.lua --nproc 8   # predicted memory per rank\n");
}

// Descriptors run out after some ranks have started.
TEST_F(LaunchTest, NoRoomForMoreRanks) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer itself needs descriptors when there is none";
#endif
  pid_t child = fork();  // because the limit cannot be raised again
  if (child == 0) {
    rlimit few{64, 64};
    setrlimit(RLIMIT_NOFILE, &few);
    for (int i = 0; i < 40; ++i) fcntl(0, F_DUPFD_CLOEXEC, 3);
    int code = run(16, [](const RankStart&) -> int {
      for (;;) pause();
    });
    _exit(code == 2 && said("cannot start local rank") && said("ulimit -n") && child_processes().empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(LaunchTest, RanksThatCannotFitAreRefusedBeforeTheStart) {
  auto message = [&](int ranks) {
    try {
      run(ranks, [](const RankStart&) { return 0; });
    } catch (const Error& error) {
      return std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    }
    return std::string("started");
  };
  EXPECT_EQ(message(1 << 30).rfind("18: 1073741824 ranks on this machine need at least 2.00 PiB, and ", 0), 0u);
  pid_t child = fork();
  if (child == 0) {
    rlimit few{64, 64};
    setrlimit(RLIMIT_NOFILE, &few);
    _exit(message(20) == "2: 20 ranks need 72 open files, and the limit is 64 (ulimit -Hn); use fewer (--nproc)" ? 0
                                                                                                                 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(AvailableMemory, IsTheLeastOfMachineAndCgroups) {
  namespace fs = std::filesystem;
  fs::path root = fs::path(testing::TempDir()) / ("preflight" + std::to_string(getpid()));
  auto write = [&root](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  write("proc/meminfo", "MemTotal: 99 kB\nMemAvailable:  64 kB\nSwapTotal: 0 kB\n");
  EXPECT_EQ(available_memory(root.string()), 64 << 10);
  write("proc/self/cgroup", "0::/pod/job\n");
  write("sys/fs/cgroup/pod/job/memory.max", "max\n");
  EXPECT_EQ(available_memory(root.string()), 64 << 10);
  write("sys/fs/cgroup/pod/memory.max", "30000\n");
  write("sys/fs/cgroup/pod/memory.current", "10000\n");
  EXPECT_EQ(available_memory(root.string()), 20000);
  write("sys/fs/cgroup/pod/memory.stat", "anon 9000\ninactive_file 4000\nactive_file 1\n");
  EXPECT_EQ(available_memory(root.string()), 24000);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "9000\n");
  EXPECT_EQ(available_memory(root.string()), 9000) << "a container's namespace";
  fs::remove_all(root);
}

TEST_F(LaunchTest, OptionsAreChecked) {
  EXPECT_THROW(run(0, [](const RankStart&) { return 0; }), Error);
  options.node_rank = 1;
  EXPECT_THROW(run(1, [](const RankStart&) { return 0; }), Error);
}

}  // namespace
}  // namespace prun
