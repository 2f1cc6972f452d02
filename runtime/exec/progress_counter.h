// A monotonic counter that one thread advances and others wait for: "stream S has completed op k".
//
// Waiting is a short spin, then a futex: on a machine with more threads than cores a longer spin would take the core
// from the very thread that is waited for. Who sleeps says for which value, and is not woken before: of a hundred ops
// of a step some twenty are waited for.
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>

namespace prun {

class alignas(64) ProgressCounter {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }
  // The owner only.
  void advance(uint64_t value);
  // Blocks until value() >= target; false when `cancelled` turned true first (looked at while blocked).
  bool wait(uint64_t target, const std::atomic<bool>& cancelled, int spins);
  // Wakes all waiters so that they see a cancellation.
  void wake();

 private:
  static constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();

  void await(uint64_t target);

  std::atomic<uint64_t> value_{0};
  std::atomic<uint64_t> awaited_{kNobody};  // the least value that somebody sleeps for
  std::atomic<uint32_t> futex_{0};          // changes with every advance that somebody sleeps for
};

}  // namespace prun
