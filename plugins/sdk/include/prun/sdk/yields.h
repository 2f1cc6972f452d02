// Whether a rank that waits should yield its core to the others, or sleep: learned from how long yields take.
//
// A yield that took long has given the core to somebody who computes. Then, for a while, sleep at once instead: who is
// woken comes before who computes. The while grows as long as the first yield after it is slow again.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace prun::sdk {

// Any thread.
class Yields {
 public:
  // Times of one clock, in nanoseconds.
  bool pay(uint64_t now) const { return now >= crowded_until_.load(std::memory_order_relaxed); }
  void took(uint64_t before, uint64_t now) {
    if (now - before < kSlow) return;
    const uint64_t last = crowded_.load(std::memory_order_relaxed);
    const bool again = now < crowded_until_.load(std::memory_order_relaxed) + last;
    const uint64_t next = again ? std::min(2 * last, kMost) : kLeast;
    crowded_.store(next, std::memory_order_relaxed);
    crowded_until_.store(now + next, std::memory_order_relaxed);
  }

 private:
  static constexpr uint64_t kSlow = 300 * 1000, kLeast = 4 * 1000 * 1000, kMost = 64 * 1000 * 1000;
  std::atomic<uint64_t> crowded_until_{0}, crowded_{0};
};

}  // namespace prun::sdk
