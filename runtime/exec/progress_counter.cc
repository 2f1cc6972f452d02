// The order matters: advance() stores the value before it reads awaited_, otherwise a sleeper could miss the value.
#include "exec/progress_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace prun {
namespace {

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
  if (value >= awaited_.load(std::memory_order_seq_cst)) wake();
}

// Threads that sleep for a later value wake, too, and register it again.
void ProgressCounter::wake() {
  awaited_.store(kNobody, std::memory_order_seq_cst);
  futex_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&futex_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void ProgressCounter::await(uint64_t target) {
  uint64_t least = awaited_.load(std::memory_order_seq_cst);
  while (target < least && !awaited_.compare_exchange_weak(least, target, std::memory_order_seq_cst)) {
  }
}

bool ProgressCounter::wait(uint64_t target, const std::atomic<bool>& cancelled, int spins) {
  if (value() >= target) return true;
  for (int i = 0; i < spins; ++i) {
    pause_cpu();
    if (value() >= target) return true;
  }
  while (!cancelled.load(std::memory_order_acquire)) {
    const uint32_t seen = futex_.load(std::memory_order_seq_cst);  // before await: wake() has the opposite order
    await(target);
    if (value_.load(std::memory_order_seq_cst) >= target) return true;
    timespec timeout{0, kBlockNs};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&futex_), FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
    if (value() >= target) return true;
  }
  return value() >= target;
}

}  // namespace prun
