// An observer that records its calls, and checks after a job that no process or descriptor is left.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "launch/launch.h"

namespace prun {

struct KeepingObserver : LaunchObserver {
  void job_received(std::string_view job) override { lines.push_back({-1, std::string(job)}); }
  void started(const std::vector<int>& ranks_in, const std::vector<int>& pids_in,
               const std::vector<void*>& recorders_in) override {
    ranks = ranks_in;
    pids = pids_in;
    recorders = recorders_in;
    if (on_started) on_started();
  }
  void tick() override {
    ++ticks;
    if (on_tick) on_tick();
  }
  void line(int rank, const std::string& text) override { lines.push_back({rank, text}); }
  std::string where(int rank) override { return "op of rank " + std::to_string(rank) + " (plan.lua:7)"; }
  void message(const std::string& text) override { messages += text; }

  std::vector<std::string> lines_of(int rank) const {
    std::vector<std::string> texts;
    for (const auto& [from, text] : lines)
      if (from == rank) texts.push_back(text);
    return texts;
  }

  std::vector<int> ranks, pids;
  std::vector<void*> recorders;
  std::vector<std::pair<int, std::string>> lines;
  std::string messages;
  int ticks = 0;
  std::function<void()> on_started, on_tick;
};

inline std::vector<int> child_processes() {
  std::ifstream list("/proc/self/task/" + std::to_string(getpid()) + "/children");
  std::vector<int> pids;
  for (int pid; list >> pid;) pids.push_back(pid);
  return pids;
}

inline int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

inline double seconds_of(const std::function<void()>& work) {
  auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Runs jobs in this process; after each test no child process and no descriptor may be left.
class LaunchTest : public testing::Test {
 protected:
  void SetUp() override { descriptors_ = open_descriptors(); }
  void TearDown() override {
    EXPECT_EQ(child_processes(), std::vector<int>{});
    EXPECT_EQ(open_descriptors(), descriptors_);
  }
  int run(int nproc, const std::function<int(const RankStart&)>& rank_main) {
    options.nproc = nproc;
    int code = -1;
    seconds = seconds_of([&] { code = Launch(options, observer).run("the job", rank_main); });
    return code;
  }
  bool said(const std::string& text) const { return observer.messages.find(text) != std::string::npos; }

  LaunchOptions options{.command = "plan.lua --nproc 4"};
  KeepingObserver observer;
  double seconds = 0;

 private:
  int descriptors_ = 0;
};

// A rank that does nothing until it is killed or the job ends.
inline int wait_for_abort(const RankStart& start) {
  while (!start.launcher->aborted()) usleep(1000);
  return 1;
}

}  // namespace prun
