// A block of a kernel on the CPU. Its threads alternate on one CPU thread: each runs until it ends or has to wait, and
// threads that never wait share one stack. The order in which they begin and continue is random.
#include "block.h"

#include <algorithm>
#include <bit>
#include <cstdio>
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

constinit thread_local Block* current __attribute__((tls_model("initial-exec"))) = nullptr;

bool same(const Here& a, const Here& b) {
  if (a.line() != b.line() || a.column() != b.column()) return false;
  return a.file_name() == b.file_name() || std::string_view(a.file_name()) == b.file_name();
}
std::string text(const uint3& i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}
std::string hex(unsigned bits) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", bits);
  return text;
}
std::string text(const char* what, const Here& here) {
  return std::string(what) + " at " + here.file_name() + ":" + std::to_string(here.line());
}

}  // namespace

Block::Block(dim3 size, const std::function<void()>& body) : size_(size), body_(body), random_(random_number()) {
  const unsigned count = size.x * size.y * size.z;
  threads_.resize(count);
  warps_.resize((count + 31) / 32);
  ready_.resize(std::bit_ceil(size_t{count}));
  for (unsigned i = 0; i < count; ++i) {
    threads_[i].number = i;
    threads_[i].index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
  }
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
  for (size_t w = 0; w < warps_.size(); ++w) {
    const size_t lanes = std::min<size_t>(32, count - 32 * w);
    warps_[w].gone = lanes == 32 ? 0 : ~0u << lanes;
    warps_[w].groups.clear();
  }
  arrived_ = done_ = begun_ = 0;
  // Threads begin in steps that are coprime to their number, from a random one.
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

// The loop of every fiber: runs threads from their beginning to their end, as long as new ones remain.
void Block::serve() {
  Fiber* self = fibers_.back().get();  // just made, and entered at once
  for (;;) {
    running_->fiber = self;
    body_();
    leave(*running_);
    if (goes_on()) {
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
  running_ = ready_[ready_begin_];
  ready_begin_ = (ready_begin_ + 1) & (ready_.size() - 1);
  --ready_count_;
  stand_at(*running_);
  return *running_->fiber;
}

// Suspends the running thread until another one wakes it.
void Block::suspend() {
  Thread& self = *running_;
  if (goes_on()) {
    self.fiber->switch_to(take_ready());
  } else if (begun_ < threads_.size()) {
    stand_at(*(running_ = begin_next()));
    self.fiber->switch_to(fiber());
  } else {
    die_stuck();
  }
}

// Returns whether the next thread is one that was woken, rather than one that has yet to begin.
bool Block::goes_on() { return ready_count_ > 0 && (begun_ == threads_.size() || random() % 2 == 0); }

// Wakes those of `count` threads for which `which` returns true, in rising or falling order, before or after the
// threads that are ready, so that the order of arrival changes from one barrier to the next.
template <class F>
void Block::wake(Thread* first, size_t count, const F& which) {
  const uint32_t how = random();
  const size_t mask = ready_.size() - 1;
  for (size_t i = 0; i < count; ++i) {
    Thread* thread = first + ((how & 1) != 0 ? i : count - 1 - i);
    if (!which(*thread)) continue;
    if ((how & 2) != 0) ready_begin_ = (ready_begin_ - 1) & mask;
    ready_[(how & 2) != 0 ? ready_begin_ : (ready_begin_ + ready_count_) & mask] = thread;
    ++ready_count_;
  }
}

void Block::leave(Thread& thread) {
  ++done_;
  if (!thread.copies.empty())
    die("thread " + text(thread.index) + " of a block has ended and not waited for its copies");
  if (arrived_ > 0)
    die("thread " + text(thread.index) + " of a block has ended while others wait at " + text(what_, here_));
  Warp& warp = warps_[thread.number / 32];
  warp.gone |= 1u << thread.number % 32;
  // Lanes with this one in their mask may have waited for it.
  for (size_t i = warp.groups.size(); i-- > 0;)
    if (warp.groups[i].arrived == (warp.groups[i].mask & ~warp.gone)) finish(warp, warp.groups[i], nullptr);
}

void Block::meet(const char* what, const Here& here) {
  Thread& self = *running_;
  if (done_ > 0)
    die("thread " + text(self.index) + " of a block is at " + text(what, here) + ", which other threads have left out");
  if (arrived_++ == 0) {
    what_ = what, here_ = here;
  } else if (!same(here, here_)) {
    die("threads of a block meet at different places: " + text(self.index) + " at " + text(what, here) +
        ", others at " + text(what_, here_));
  }
  if (arrived_ < threads_.size()) return suspend();
  arrived_ = 0;
  wake(threads_.data(), threads_.size(), [&](const Thread& thread) { return &thread != &self; });
}

Block::Group& Block::arrive(Warp& warp, unsigned lane, unsigned mask, const char* what, const Here& here,
                            Combine combine) {
  if ((mask >> lane & 1) == 0)
    die("lane " + std::to_string(lane) + " calls " + text(what, here) + ", whose mask is without it");
  const auto found =
      std::find_if(warp.groups.begin(), warp.groups.end(), [&](const Group& group) { return group.mask == mask; });
  if (found == warp.groups.end()) return warp.groups.emplace_back(Group{mask, 1u << lane, what, here, combine});
  if (found->combine != combine || !same(found->here, here))
    die("lanes of a warp meet at different places: " + std::to_string(lane) + " at " + text(what, here) +
        ", others at " + text(found->what, found->here));
  found->arrived |= 1u << lane;
  return *found;
}

// All lanes of a group have arrived; `self` is the running one.
void Block::finish(Warp& warp, Group& group, const Thread* self) {
  Thread* first = &threads_[static_cast<size_t>(&warp - warps_.data()) * 32];
  const Group done = group;
  group = warp.groups.back();
  warp.groups.pop_back();
  Lane lanes[32];
  for (unsigned lane = 0; lane < 32; ++lane)
    if (done.arrived >> lane & 1) lanes[lane] = first[lane].lane;
  done.combine(lanes);
  wake(first, std::min<size_t>(32, static_cast<size_t>(threads_.data() + threads_.size() - first)),
       [&](const Thread& thread) { return (done.arrived >> thread.number % 32 & 1) != 0 && &thread != self; });
}

void Block::meet_lanes(unsigned mask, const char* what, const Here& here, Lane lane, Combine combine) {
  Thread& self = *running_;
  self.lane = lane;
  Warp& warp = warps_[self.number / 32];
  Group& group = arrive(warp, this->lane(), mask, what, here, combine);
  if (group.arrived == (mask & ~warp.gone))
    finish(warp, group, &self);
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

void Block::die_stuck() const {
  std::string all;
  if (arrived_ > 0) all += "; " + std::to_string(arrived_) + " threads at " + text(what_, here_);
  for (const Warp& warp : warps_)
    for (const Group& group : warp.groups)
      all += "; lanes " + hex(group.arrived) + " of mask " + hex(group.mask) + " at " + text(group.what, group.here);
  die("a block waits forever" + all);
}

void die_in_kernel(const char* why, const char* what, const Here& here) {
  die("thread " + text(threadIdx) + " of block " + text(blockIdx) + ", " + text(what, here) + ": " + why);
}
void meet_block(const char* what, const Here& here) { current->meet(what, here); }
void meet_warp(unsigned mask, const char* what, const Here& here, Lane lane, Combine combine) {
  current->meet_lanes(mask, what, here, lane, combine);
}
void copy_later(void* to, const void* from, size_t bytes) { current->copy_later(to, from, bytes); }
void wait_for_copies() { current->wait_for_copies(); }
unsigned lane_id() { return current->lane(); }

}  // namespace substitute
