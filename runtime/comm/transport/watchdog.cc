// Slots of threads live as long as the process: their number is that of the threads that ever called a plugin at once.
#include "comm/transport/watchdog.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace prun {
namespace {

constexpr double kInterval_s = 0.25;

struct Slot {
  std::atomic<const char*> function{nullptr};
  std::atomic<uint64_t> calls{0};  // written by its thread only
  std::atomic<bool> taken{true};
};

struct Watch {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Slot> slots;  // never moved
  std::function<void(const char*)> blocked;
  double limit_s = 0;
  bool started = false;
};
Watch& watch() {
  static Watch* instance = new Watch;  // outlives every thread
  return *instance;
}

struct SlotOwner {
  Slot* slot;
  SlotOwner() {
    std::lock_guard lock(watch().mutex);
    for (Slot& free : watch().slots) {
      bool taken = false;
      if (free.taken.compare_exchange_strong(taken, true)) {
        slot = &free;
        return;
      }
    }
    slot = &watch().slots.emplace_back();
  }
  ~SlotOwner() {
    slot->function.store(nullptr);
    slot->taken.store(false);
  }
};
Slot& own_slot() {
  thread_local SlotOwner place;
  return *place.slot;
}

void look() {
  struct Seen {
    uint64_t calls = 0;
    double blocked_s = 0;  // in whole intervals: while the process is stopped nothing is anybody's fault
  };
  std::map<const Slot*, Seen> seen;
  std::unique_lock lock(watch().mutex);
  for (;;) {
    watch().changed.wait(lock, [] { return watch().blocked != nullptr; });
    watch().changed.wait_for(lock, std::chrono::duration<double>(kInterval_s),
                             [] { return watch().blocked == nullptr; });
    if (watch().blocked == nullptr) {
      seen.clear();
      continue;
    }
    for (const Slot& slot : watch().slots) {
      const char* function = slot.function.load(std::memory_order_relaxed);
      uint64_t calls = slot.calls.load(std::memory_order_relaxed);
      auto [entry, fresh] = seen.try_emplace(&slot);
      if (fresh || function == nullptr || calls != entry->second.calls) {
        entry->second = {calls, 0};
      } else if ((entry->second.blocked_s += kInterval_s) >= watch().limit_s) {
        auto blocked = std::exchange(watch().blocked, nullptr);
        lock.unlock();
        blocked(function);
        lock.lock();
        break;
      }
    }
  }
}

}  // namespace

InPlugin::InPlugin(const char* function) {
  Slot& slot = own_slot();
  outer_ = slot.function.load(std::memory_order_relaxed);
  slot.calls.store(slot.calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  slot.function.store(function, std::memory_order_relaxed);
}
InPlugin::~InPlugin() { own_slot().function.store(outer_, std::memory_order_relaxed); }

void watch_plugin_calls(double limit_s, std::function<void(const char*)> blocked) {
  std::lock_guard lock(watch().mutex);
  watch().limit_s = limit_s;
  watch().blocked = std::move(blocked);
  if (!watch().started && watch().blocked != nullptr) {
    watch().started = true;
    std::thread(look).detach();
  }
  watch().changed.notify_all();
}

}  // namespace prun
