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
  static constexpr uint64_t kSlow = 300 * 1000;
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
  static constexpr uint64_t kLeast = 4 * 1000 * 1000, kMost = 64 * 1000 * 1000;
  std::atomic<uint64_t> crowded_until_{0}, crowded_{0};
};

// The same for who counts what has come. A slow yield gave the core to others that communicate, and not to one that
// computes, if much more has come by the next wait than was waited for: they were ahead. One thread at a time.
class CountedYields {
 public:
  // `ended`: what has come so far; before each yield.
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
  // A wait of its own is for two or three messages, as many as a few calls have.
  static constexpr uint64_t kMany = 16;
  Yields yields_;
  uint64_t slow_ = 0, ended_before_ = 0;
};

}  // namespace prun::sdk
