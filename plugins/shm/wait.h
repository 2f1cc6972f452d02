// Waiting for memory that a peer will write: spin briefly, yield for a while, then sleep on a futex.
//
// With more ranks than cores the spin is almost zero, because the awaited rank may need this very core. Sleeping starts
// late because a wake-up across cores costs 20 us; it starts at once where other processes compute on these cores,
// because a yield then lasts a whole time slice of 3 ms.
#pragma once
#include <linux/futex.h>
#include <prun/sdk/yields.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "segment.h"

namespace prun::shm {

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline long futex(std::atomic<uint32_t>& word, int op, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), op, value, timeout, nullptr, 0);
}

// Wakes the sleepers of a bell after a store that they may wait for. The store must be sequentially consistent (or
// fenced): either this thread sees the sleeper, or the sleeper sees the store.
inline void ring(Doorbell& bell) {
  if (bell.sleepers.load(std::memory_order_seq_cst) == 0) [[likely]]
    return;
  bell.word.fetch_add(1, std::memory_order_seq_cst);
  futex(bell.word, FUTEX_WAKE, INT_MAX, nullptr);
}

struct WaitPolicy {
  uint64_t spin_ns = 0;                 // duration of the spin before the first yield
  uint64_t yield_ns = 1500 * 1000;      // duration of yielding before the first sleep
  uint64_t call_ns = 8 * 1000 * 1000;   // duration of one call of test; the ABI allows 10 ms
  uint64_t sleep_ns = 4 * 1000 * 1000;  // duration of one nap
  sdk::Yields yields;
  // After a futile spin that one or two yields ended, the awaited rank shares this core. Spinning is then skipped for
  // this long.
  uint64_t cramped_ns = 10 * 1000 * 1000;
  std::atomic<uint64_t> cramped_until{0};
};

enum class Wait { ready, time, aborted, lost };

// Start of a request's wait without progress; persists across calls of test.
struct Patience {
  uint64_t since = 0;
  void progress() { since = 0; }
};

// Waits until ready() holds, stop() is true, or the call has lasted call_ns since `start` (0 = now). bell_of() returns
// the bell of the missing member and changes only through ready(). idle() runs before each nap of a long wait, may look
// for lost peers, and returns true to end with Wait::lost.
template <class Bell, class Ready, class Stop, class Idle>
Wait wait_until(WaitPolicy& policy, Bell bell_of, Patience& patience, uint64_t& start, Ready ready, Stop stop,
                Idle idle) {
  if (ready()) return Wait::ready;
  for (int i = 0; i < 8; i++) {
    pause_cpu();
    if (ready()) return Wait::ready;
  }
  if (stop()) return Wait::aborted;
  uint64_t now = now_ns();
  if (start == 0) start = now;
  if (patience.since == 0) patience.since = now;
  const bool spins = policy.spin_ns > 0 && now >= policy.cramped_until.load(std::memory_order_relaxed);
  while (spins && now - patience.since < policy.spin_ns) {
    for (int i = 0; i < 16; i++) {
      if (ready()) return Wait::ready;
      pause_cpu();
    }
    if (stop()) return Wait::aborted;
    now = now_ns();
  }
  for (int yields = 0;; yields++) {
    if (ready()) {
      if (spins && yields > 0 && yields <= 2)
        policy.cramped_until.store(now + policy.cramped_ns, std::memory_order_relaxed);
      return Wait::ready;
    }
    if (stop()) return Wait::aborted;
    if (now - start >= policy.call_ns) return Wait::time;
    const uint64_t waited = now - patience.since;
    if (waited < policy.spin_ns + policy.yield_ns && policy.yields.pay(now)) {
      const uint64_t before = now;
      sched_yield();
      now = now_ns();
      policy.yields.took(before, now);
      continue;
    }
    if (waited > policy.yield_ns && idle()) return ready() ? Wait::ready : Wait::lost;
    Doorbell& bell = bell_of();
    bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t word = bell.word.load(std::memory_order_seq_cst);
    if (!ready() && &bell == &bell_of() && !stop()) {
      const timespec nap{0, static_cast<long>(policy.sleep_ns)};
      futex(bell.word, FUTEX_WAIT, word, &nap);
    }
    bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    now = now_ns();
  }
}

}  // namespace prun::shm
