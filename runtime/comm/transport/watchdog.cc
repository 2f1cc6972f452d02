// Slots live as long as the process; their number is the maximum of threads that ever called plugins concurrently.
#include "comm/transport/watchdog.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "base/thread_annotations.h"

namespace prun {
namespace {

constexpr std::chrono::duration<double> kInterval(0.25);

struct Slot {
  std::atomic<const char*> function{nullptr};
  std::atomic<uint64_t> calls{0};  // written by its thread only
  std::atomic<bool> taken{true};
};

class Watchdog {
 public:
  Slot& take_slot() {
    MutexLock lock(mutex_);
    for (Slot& slot : slots_)
      if (!slot.taken.exchange(true)) return slot;
    return slots_.emplace_back();
  }

  void watch(double limit_s, std::function<void(const char*)> blocked) {
    MutexLock lock(mutex_);
    limit_s_ = limit_s;
    blocked_ = std::move(blocked);
    if (blocked_ != nullptr && !std::exchange(started_, true)) std::thread([this] { run(); }).detach();
    changed_.notify_all();
  }

 private:
  struct Seen {
    uint64_t calls = 0;
    double blocked_s = 0;  // in whole intervals, so that time in which the process is stopped does not count
  };

  [[noreturn]] void run() {
    std::map<const Slot*, Seen> seen;
    MutexLock lock(mutex_);
    for (;;) {
      if (blocked_ == nullptr) {
        seen.clear();
        lock.wait(changed_);
        continue;
      }
      if (lock.wait_for(changed_, kInterval) == std::cv_status::no_timeout || blocked_ == nullptr) continue;
      const char* function = overdue(seen);
      if (function == nullptr) continue;
      auto blocked = std::exchange(blocked_, nullptr);
      lock.unlock();
      blocked(function);
      lock.lock();
    }
  }

  // Returns the function that some thread has been in for the limit, or null. Called once per interval.
  const char* overdue(std::map<const Slot*, Seen>& seen) PRUN_REQUIRES(mutex_) {
    for (const Slot& slot : slots_) {
      const char* function = slot.function.load(std::memory_order_relaxed);
      const uint64_t calls = slot.calls.load(std::memory_order_relaxed);
      auto [entry, fresh] = seen.try_emplace(&slot);
      if (fresh || function == nullptr || calls != entry->second.calls)
        entry->second = {calls, 0};
      else if ((entry->second.blocked_s += kInterval.count()) >= limit_s_)
        return function;
    }
    return nullptr;
  }

  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slot> slots_ PRUN_GUARDED_BY(mutex_);  // never moved
  std::function<void(const char*)> blocked_ PRUN_GUARDED_BY(mutex_);
  double limit_s_ PRUN_GUARDED_BY(mutex_) = 0;
  bool started_ PRUN_GUARDED_BY(mutex_) = false;
};

Watchdog& watchdog() {
  static Watchdog* instance = new Watchdog;  // outlives every thread
  return *instance;
}

Slot& own_slot() {
  struct Lease {
    Slot& slot = watchdog().take_slot();
    ~Lease() {
      slot.function.store(nullptr);
      slot.taken.store(false);
    }
  };
  thread_local Lease lease;
  return lease.slot;
}

}  // namespace

PluginCall::PluginCall(const char* function) {
  Slot& slot = own_slot();
  outer_ = slot.function.load(std::memory_order_relaxed);
  slot.calls.store(slot.calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  slot.function.store(function, std::memory_order_relaxed);
}
PluginCall::~PluginCall() { own_slot().function.store(outer_, std::memory_order_relaxed); }

void watch_plugin_calls(double limit_s, std::function<void(const char*)> blocked) {
  watchdog().watch(limit_s, std::move(blocked));
}

}  // namespace prun
