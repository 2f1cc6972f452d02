// A thread that waits for a counter's value sleeps until that value, and no longer.
#include "exec/progress_counter.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace prun {
namespace {

bool sleeps(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && line.substr(name_end, 3) == ") S";
}

void until_asleep(const std::atomic<int>& thread) {
  while (thread == 0 || !sleeps(thread)) ::sched_yield();
}

TEST(ProgressCounter, ASleeperIsNotWokenForEarlierValues) {
  constexpr uint64_t kValues = 400;
  ProgressCounter counter;
  const std::atomic<bool> cancelled{false};
  std::atomic<int> thread{0};
  long switches = -1;
  std::thread waiter([&] {
    thread = static_cast<int>(::gettid());
    EXPECT_TRUE(counter.wait(kValues, cancelled, 0));
    rusage usage;
    ::getrusage(RUSAGE_THREAD, &usage);
    switches = usage.ru_nvcsw;
  });
  for (uint64_t value = 1; value <= kValues; ++value) {
    until_asleep(thread);
    counter.advance(value);
  }
  waiter.join();
  EXPECT_LT(switches, static_cast<long>(kValues / 2));  // the waiter also wakes every 20 ms
}

TEST(ProgressCounter, EveryWaiterSeesItsValue) {
  constexpr int kWaiters = 3;
  constexpr uint64_t kValues = 20'000;
  ProgressCounter counter, answers[kWaiters];
  const std::atomic<bool> cancelled{false};
  std::vector<std::thread> waiters;
  for (int w = 0; w < kWaiters; ++w)
    waiters.emplace_back([&, w] {
      for (uint64_t value = 1 + w; value <= kValues; value += 1 + w) {
        EXPECT_TRUE(counter.wait(value, cancelled, w * 20));
        answers[w].advance(value);
      }
    });
  for (uint64_t value = 1; value <= kValues; ++value) {
    counter.advance(value);
    if (value % 16 != 0) continue;
    EXPECT_TRUE(answers[value / 16 % kWaiters].wait(value / 2, cancelled, 0));
  }
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(ProgressCounter, WakingShowsACancellation) {
  ProgressCounter counter;
  std::atomic<bool> cancelled{false};
  std::atomic<int> thread{0};
  std::thread waiter([&] {
    thread = static_cast<int>(::gettid());
    EXPECT_FALSE(counter.wait(1, cancelled, 0));
  });
  until_asleep(thread);
  cancelled = true;
  counter.wake();
  waiter.join();
}

}  // namespace
}  // namespace prun
