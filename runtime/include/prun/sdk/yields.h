// Decides from the duration of past yields whether a waiting rank should yield its core or sleep.
//
// A slow yield gave the core to a thread that computes. For a while after it, sleep at once instead, because the
// scheduler runs a woken thread before a computing one. The while doubles as long as the first yield after it is slow
// again.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace prun::sdk {

// Any thread.
class Yields {
 public:
  static constexpr uint64_t kSlow = 300 * 1000;
  // Returns whether a yield pays now; false: sleep. All times are nanoseconds of one clock.
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
  static constexpr uint64_t kLeast = 4 * 1000 * 1000, kMost = 64 * 1000 * 1000;
  std::atomic<uint64_t> crowded_until_{0}, crowded_{0};
};

// Yields for a caller that counts arrived messages. If many more messages than the awaited ones have arrived by the
// next wait, a slow yield gave the core to ranks that communicate, not to one that computes, so it does not count. One
// thread at a time may call it.
class CountedYields {
 public:
  // `ended`: messages that have arrived so far. Called before each yield.
  bool pay(uint64_t now, uint64_t ended) {
    if (slow_ > 0 && ended - ended_before_ < kMany) yields_.took(now - slow_, now);
    slow_ = 0;
    return yields_.pay(now);
  }
  void took(uint64_t before, uint64_t now, uint64_t ended) {
    if (now - before < Yields::kSlow) return;
    slow_ = now - before;
    ended_before_ = ended;
  }

 private:
  // One wait is for the two or three messages of a few calls.
  static constexpr uint64_t kMany = 16;
  Yields yields_;
  uint64_t slow_ = 0, ended_before_ = 0;
};

}  // namespace prun::sdk
