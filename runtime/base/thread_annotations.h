// Lock rules that the compiler checks: `clang++ -Wthread-safety` reports data that are accessed without their lock.
// Other compilers ignore the macros. See https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.
//
//   mutable Mutex mutex_;
//   std::deque<Entry> entries_ PRUN_GUARDED_BY(mutex_);
//   void compact() PRUN_REQUIRES(mutex_);   // the caller holds it
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define PRUN_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define PRUN_THREAD_ATTRIBUTE(x)
#endif
#define PRUN_GUARDED_BY(mutex) PRUN_THREAD_ATTRIBUTE(guarded_by(mutex))
#define PRUN_REQUIRES(...) PRUN_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define PRUN_EXCLUDES(...) PRUN_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define PRUN_ACQUIRE(...) PRUN_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define PRUN_RELEASE(...) PRUN_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))

namespace prun {

class PRUN_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() PRUN_ACQUIRE() { mutex_.lock(); }
  void unlock() PRUN_RELEASE() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a Mutex to the end of its scope. unlock() and lock() release and reacquire it; wait() sleeps on a condition
// variable meanwhile. Loop around wait() instead of passing a predicate, so that the compiler sees that the lock is
// held.
class PRUN_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PRUN_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() PRUN_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void lock() PRUN_ACQUIRE() { lock_.lock(); }
  void unlock() PRUN_RELEASE() { lock_.unlock(); }
  void wait(std::condition_variable& changed) { changed.wait(lock_); }
  template <class Rep, class Period>
  std::cv_status wait_for(std::condition_variable& changed, std::chrono::duration<Rep, Period> time) {
    return changed.wait_for(lock_, time);
  }
  template <class Clock, class Duration>
  std::cv_status wait_until(std::condition_variable& changed, std::chrono::time_point<Clock, Duration> time) {
    return changed.wait_until(lock_, time);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace prun
