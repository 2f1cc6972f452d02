// A monotonic counter that one thread advances and others wait for: "stream S has completed op k".
//
// A wait is a short spin, then a futex: with more threads than cores, a longer spin would take the core from the
// awaited thread. A sleeper registers its target and is not woken earlier, because only about a fifth of a step's ops
// are waited for.
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>

namespace prun {

class alignas(64) ProgressCounter {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }
  // Called by the owner only.
  void advance(uint64_t value);
  // Blocks until value() >= target; returns false if `cancelled` became true first (tested while blocked).
  bool wait(uint64_t target, const std::atomic<bool>& cancelled, int spins);
  // Wakes all waiters, so that they see a cancellation.
  void wake();

 private:
  static constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();

  void await(uint64_t target);

  std::atomic<uint64_t> value_{0};
  std::atomic<uint64_t> awaited_{kNobody};  // the least value that a thread sleeps for
  std::atomic<uint32_t> futex_{0};          // changes with every advance that a thread sleeps for
};

}  // namespace prun
