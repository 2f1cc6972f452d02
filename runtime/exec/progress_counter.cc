// The order matters: advance() stores the value before it looks for sleepers, or a sleeper could miss the value.
#include "exec/progress_counter.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace prun {
namespace {

constexpr int kYields = 50;                  // a few microseconds each when other threads are ready
constexpr long kBlockNs = 20 * 1000 * 1000;  // so that a cancellation is seen even if its wake is lost

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void ProgressCounter::advance(uint64_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
}

void ProgressCounter::wake() {
  futex_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&futex_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool ProgressCounter::wait(uint64_t target, const std::atomic<bool>& cancelled, int spins) {
  if (value() >= target) return true;
  for (int i = 0; i < spins; ++i) {
    pause_cpu();
    if (value() >= target) return true;
  }
  for (int i = 0; i < kYields; ++i) {
    sched_yield();
    if (value() >= target) return true;
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (value_.load(std::memory_order_seq_cst) < target && !cancelled.load(std::memory_order_acquire)) {
    uint32_t seen = futex_.load(std::memory_order_seq_cst);
    if (value_.load(std::memory_order_seq_cst) >= target) break;
    timespec timeout{0, kBlockNs};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&futex_), FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return value() >= target;
}

}  // namespace prun
