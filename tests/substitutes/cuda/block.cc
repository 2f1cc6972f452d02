// A block of a kernel on the CPU. Its threads take turns on one CPU thread: a thread goes on until it is done or has to
// wait, and those that never wait share one stack. In which order they begin and go on is random.
#include "block.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "machine.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};
constinit thread_local unsigned char* substitute::dynamic_shared = nullptr;

namespace substitute {
namespace {

thread_local Block* current = nullptr;

bool same(const Here& a, const Here& b) {
  return a.line() == b.line() && a.column() == b.column() && std::string_view(a.file_name()) == b.file_name();
}
std::string text(const uint3& i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}
std::string text(const char* what, const Here& here) {
  return std::string(what) + " at " + here.file_name() + ":" + std::to_string(here.line());
}

}  // namespace

Block::Block(dim3 size, const std::function<void()>& body) : size_(size), body_(body), random_(random_number()) {
  const unsigned count = size.x * size.y * size.z;
  threads_.resize(count);
  warps_.resize((count + 31) / 32);
  for (unsigned i = 0; i < count; ++i) threads_[i].index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
}

Block::~Block() = default;

uint32_t Block::random() {  // xorshift
  random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
  return static_cast<uint32_t>(random_ >> 32);
}

void Block::run(uint3 index) {
  const size_t count = threads_.size();
  blockIdx = index;
  blockDim = size_;
  for (Thread& thread : threads_) thread.waiting = nullptr;
  for (size_t w = 0; w < warps_.size(); ++w) {
    const size_t lanes = std::min<size_t>(32, count - 32 * w);
    warps_[w].gone = lanes == 32 ? 0 : ~0u << lanes;
  }
  arrived_ = done_ = begun_ = 0;
  // Threads begin in steps that have no divisor in common with their number, from anywhere.
  first_ = random() % count;
  do step_ = 1 + random() % count;
  while (std::gcd(step_, count) != 1);
  current = this;
  Fiber& fresh = fiber();
  running_ = begin_next();
  stand_at(*running_);
  main_.switch_to(fresh);
  current = nullptr;
}

Block::Thread* Block::begin_next() { return &threads_[(first_ + begun_++ * step_) % threads_.size()]; }

void Block::stand_at(Thread& thread) { threadIdx = thread.index; }

Fiber& Block::fiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>([](void* block) { static_cast<Block*>(block)->serve(); }, this));
    return *fibers_.back();
  }
  Fiber* last = idle_.back();
  idle_.pop_back();
  return *last;
}

// What every fiber does: threads from their beginning to their end, one after the other, as long as new ones are there.
void Block::serve() {
  Fiber* self = fibers_.back().get();  // just made, and entered at once
  for (;;) {
    running_->fiber = self;
    body_();
    leave(*running_);
    if (!ready_.empty() && (begun_ == threads_.size() || random() % 2 == 0)) {
      idle_.push_back(self);
      self->switch_to(take_ready());
    } else if (begun_ < threads_.size()) {
      stand_at(*(running_ = begin_next()));
    } else {
      if (done_ < threads_.size()) die_stuck();
      idle_.push_back(self);
      self->switch_to(main_);
    }
  }
}

Fiber& Block::take_ready() {
  running_ = ready_.front();
  ready_.pop_front();
  stand_at(*running_);
  return *running_->fiber;
}

// The running thread waits until somebody wakes it.
void Block::suspend() {
  Thread& self = *running_;
  if (!ready_.empty() && (begun_ == threads_.size() || random() % 2 == 0)) {
    self.fiber->switch_to(take_ready());
  } else if (begun_ < threads_.size()) {
    stand_at(*(running_ = begin_next()));
    self.fiber->switch_to(fiber());
  } else {
    die_stuck();
  }
}

void Block::wake(Thread& thread) {
  thread.waiting = nullptr;
  // At either end: who was first at one meeting is not first at the next.
  if (random() % 2 == 0)
    ready_.push_back(&thread);
  else
    ready_.push_front(&thread);
}

void Block::leave(Thread& thread) {
  ++done_;
  if (!thread.copies.empty())
    die("thread " + text(thread.index) + " of a block has ended and not waited for its copies");
  if (arrived_ > 0)
    die("thread " + text(thread.index) + " of a block has ended while others wait at " + text(what_, here_));
  const size_t number = static_cast<size_t>(&thread - threads_.data());
  Warp& warp = warps_[number / 32];
  warp.gone |= 1u << number % 32;
  // It may be the one that lanes with it in their mask have waited for.
  for (size_t lane = 0; lane < 32; ++lane) {
    Thread* other = number / 32 * 32 + lane < threads_.size() ? &threads_[number / 32 * 32 + lane] : nullptr;
    if (other != nullptr && other->waiting != nullptr && other->mask != 0 && complete(number / 32, *other))
      finish(number / 32, *other, nullptr);
  }
}

int Block::meet(int value, const char* what, const Here& here) {
  Thread& self = *running_;
  if (done_ > 0)
    die("thread " + text(self.index) + " of a block is at " + text(what, here) + ", which other threads have left out");
  if (arrived_++ == 0) {
    what_ = what, here_ = here;
    votes_ = 0;
  } else if (!same(here, here_)) {
    die("threads of a block meet at different places: " + text(self.index) + " at " + text(what, here) +
        ", others at " + text(what_, here_));
  }
  votes_ += value != 0 ? 1 : 0;
  if (arrived_ < threads_.size()) {
    self.waiting = what, self.here = here, self.mask = 0;
    suspend();
    return met_;
  }
  arrived_ = 0;
  met_ = votes_;
  for (Thread& thread : threads_)
    if (&thread != &self) wake(thread);
  return met_;
}

bool Block::complete(size_t warp, const Thread& of) const {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((of.mask & ~warps_[warp].gone) >> lane % 32 & 1) {
      const Thread& other = threads_[warp * 32 + lane];
      if (other.waiting == nullptr || other.mask != of.mask) return false;
    }
  }
  return true;
}

// All lanes of a mask are there; `self` is the one that runs among them.
void Block::finish(size_t warp, Thread& of, Thread* self) {
  Lane lanes[32];
  const unsigned mask = of.mask & ~warps_[warp].gone;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) lanes[lane] = threads_[warp * 32 + lane].lane;
  of.combine(lanes);
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    Thread& thread = threads_[warp * 32 + lane];
    if (&thread == self)
      thread.waiting = nullptr;
    else
      wake(thread);
  }
}

void Block::meet_lanes(unsigned mask, const char* what, const Here& here, Lane lane, Combine combine) {
  Thread& self = *running_;
  const size_t number = static_cast<size_t>(&self - threads_.data()), warp = number / 32;
  if ((mask >> number % 32 & 1) == 0)
    die("lane " + std::to_string(number % 32) + " calls " + text(what, here) + ", whose mask is without it");
  for (size_t other = warp * 32; other < std::min(threads_.size(), warp * 32 + 32); ++other) {
    const Thread& thread = threads_[other];
    if (thread.waiting != nullptr && thread.mask == mask && (thread.combine != combine || !same(thread.here, here)))
      die("lanes of a warp meet at different places: " + std::to_string(number % 32) + " at " + text(what, here) +
          ", " + std::to_string(other % 32) + " at " + text(thread.waiting, thread.here));
  }
  self.waiting = what, self.here = here, self.mask = mask, self.lane = lane, self.combine = combine;
  if (complete(warp, self))
    finish(warp, self, &self);
  else
    suspend();
}

void Block::wait_for_copies() {
  for (const Copy& copy : running_->copies) {
    if (copy.from != nullptr)
      std::memcpy(copy.to, copy.from, copy.bytes);
    else
      std::memset(copy.to, 0, copy.bytes);
  }
  running_->copies.clear();
}

unsigned Block::lane() const { return static_cast<unsigned>(running_ - threads_.data()) % 32; }

void Block::die_stuck() const {
  for (const Thread& thread : threads_)
    if (thread.waiting != nullptr)
      die("a block waits forever: thread " + text(thread.index) + " at " + text(thread.waiting, thread.here) +
          (thread.mask != 0 ? ", for lanes of its mask that wait elsewhere" : ", for threads that wait elsewhere"));
  die("a block has lost a thread");
}

void die_in_kernel(const char* why, const char* what, const Here& here) {
  die("thread " + text(threadIdx) + " of block " + text(blockIdx) + ", " + text(what, here) + ": " + why);
}
int meet_block(int value, const char* what, const Here& here) { return current->meet(value, what, here); }
void meet_warp(unsigned mask, const char* what, const Here& here, Lane lane, Combine combine) {
  current->meet_lanes(mask, what, here, lane, combine);
}
void copy_later(void* to, const void* from, size_t bytes) { current->copy_later(to, from, bytes); }
void wait_for_copies() { current->wait_for_copies(); }
unsigned lane_id() { return current->lane(); }

}  // namespace substitute
