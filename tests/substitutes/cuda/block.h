// A block of threads of a kernel, which runs to its end; used for one block after the other.
#pragma once
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "fiber.h"
#include "kernel.h"

namespace substitute {

class Block {
 public:
  Block(dim3 size, const std::function<void()>& body);
  ~Block();

  void run(uint3 index);

  // For the running thread: see kernel.h.
  void meet(const char* what, const Here& here);
  void meet_lanes(unsigned mask, const char* what, const Here& here, Lane lane, Combine combine);
  unsigned lane() const { return running_->number % 32; }
  void copy_later(void* to, const void* from, size_t bytes) { running_->copies.push_back({to, from, bytes}); }
  void wait_for_copies();

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  struct Thread {
    uint3 index;
    unsigned number = 0;
    Fiber* fiber = nullptr;
    Lane lane;                 // its share of its group's operation
    std::vector<Copy> copies;  // in flight
  };
  // Lanes that wait for the other lanes of one mask.
  struct Group {
    unsigned mask, arrived;
    const char* what;
    Here here;
    Combine combine;
  };
  struct Warp {
    unsigned gone = 0;          // lanes that have ended, or do not exist
    std::vector<Group> groups;  // incomplete ones
  };

  uint32_t random();
  Thread* begin_next();
  void stand_at(Thread& thread);
  Fiber& fiber();
  [[noreturn]] void serve();
  Fiber& take_ready();
  void suspend();
  template <class F>
  void wake(Thread* first, size_t count, const F& which);
  bool goes_on();
  void leave(Thread& thread);
  Group& arrive(Warp& warp, unsigned lane, unsigned mask, const char* what, const Here& here, Combine combine);
  void finish(Warp& warp, Group& group, const Thread* self);
  [[noreturn]] void die_stuck() const;

  const dim3 size_;
  const std::function<void()>& body_;
  uint64_t random_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  // A ring buffer of the threads that may continue; its capacity is a power of two.
  std::vector<Thread*> ready_;
  size_t ready_begin_ = 0, ready_count_ = 0;
  Thread* running_ = nullptr;
  size_t first_ = 0, step_ = 1, begun_ = 0, done_ = 0;
  // The barrier that threads are arriving at.
  size_t arrived_ = 0;
  const char* what_ = nullptr;
  Here here_;

  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
};

}  // namespace substitute
