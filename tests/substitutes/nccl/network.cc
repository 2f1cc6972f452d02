#include "network.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>

#include "tests/substitutes/cuda/substitute.h"

namespace substitute {
namespace {

struct Header {
  uint64_t what, bytes;
};

std::string name_of(uint64_t id) {
  char name[48];
  snprintf(name, sizeof name, "/prun-substitute-%016llx", static_cast<unsigned long long>(id));
  return name;
}

size_t put(Pipe& pipe, const char* data, size_t bytes) {
  const uint64_t written = pipe.written.load(std::memory_order_relaxed);
  const size_t room = kPipeBytes - static_cast<size_t>(written - pipe.read.load(std::memory_order_acquire));
  const size_t now = std::min(room, bytes), at = written % kPipeBytes, first = std::min(now, kPipeBytes - at);
  if (now == 0) return 0;
  std::memcpy(pipe.data + at, data, first);
  std::memcpy(pipe.data, data + first, now - first);
  pipe.written.store(written + now, std::memory_order_release);
  return now;
}
size_t take(Pipe& pipe, char* data, size_t bytes) {
  const uint64_t read = pipe.read.load(std::memory_order_relaxed);
  const size_t there = static_cast<size_t>(pipe.written.load(std::memory_order_acquire) - read);
  const size_t now = std::min(there, bytes), at = read % kPipeBytes, first = std::min(now, kPipeBytes - at);
  if (now == 0) return 0;
  std::memcpy(data, pipe.data + at, first);
  std::memcpy(data + first, pipe.data, now - first);
  pipe.read.store(read + now, std::memory_order_release);
  return now;
}

// A message in transit: its header, then its data.
struct Transfer {
  Message message;
  Header header;
  size_t moved = 0;
  size_t total() const { return sizeof(Header) + message.bytes; }
};

class Exchange {
 public:
  Exchange(Segment& segment, int me) : segment_(segment), me_(me) {}

  void add(const std::vector<Message>& sends, const std::vector<Message>& receives) {
    std::deque<Message> own;
    for (const Message& m : sends) {
      if (m.peer == me_)
        own.push_back(m);
      else
        out_[m.peer].push_back({m, {m.what, m.bytes}});
    }
    for (const Message& m : receives) {
      if (m.peer != me_) {
        in_[m.peer].push_back({m, {}});
        continue;
      }
      if (own.empty() || own.front().bytes != m.bytes) die("a message to itself without its other half in the group");
      std::memmove(m.data, own.front().data, m.bytes);
      own.pop_front();
    }
  }

  bool move() {
    bool any = false;
    for (int peer = 0; peer < kMaxRanks; ++peer) {
      bool touched = false;
      while (!out_[peer].empty() && push(peer, touched)) out_[peer].pop_front();
      while (!in_[peer].empty() && pull(peer, touched)) in_[peer].pop_front();
      if (touched) ring(segment_.bells[peer]);
      any |= touched;
    }
    return any;
  }
  bool over() const {
    for (int peer = 0; peer < kMaxRanks; ++peer)
      if (!out_[peer].empty() || !in_[peer].empty()) return false;
    return true;
  }
  bool stuck() const { return stuck_; }

 private:
  bool push(int peer, bool& touched) {
    Transfer& t = out_[peer].front();
    Pipe& pipe = segment_.pipes[me_][peer];
    while (t.moved < t.total()) {
      const bool in_header = t.moved < sizeof(Header);
      const char* from =
          in_header ? reinterpret_cast<const char*>(&t.header) + t.moved : t.message.data + (t.moved - sizeof(Header));
      const size_t n = put(pipe, from, in_header ? sizeof(Header) - t.moved : t.total() - t.moved);
      if (n == 0) return false;
      t.moved += n;
      touched = true;
    }
    return true;
  }
  bool pull(int peer, bool& touched) {
    Transfer& t = in_[peer].front();
    Pipe& pipe = segment_.pipes[peer][me_];
    while (t.moved < t.total()) {
      const bool in_header = t.moved < sizeof(Header);
      char* to = in_header ? reinterpret_cast<char*>(&t.header) + t.moved : t.message.data + (t.moved - sizeof(Header));
      const size_t n = take(pipe, to, in_header ? sizeof(Header) - t.moved : t.total() - t.moved);
      if (n == 0) return false;
      t.moved += n;
      touched = true;
      if (in_header && t.moved == sizeof(Header) &&
          (t.header.what != t.message.what || t.header.bytes != t.message.bytes)) {
        stuck_ = true;
        return false;
      }
    }
    return true;
  }

  Segment& segment_;
  const int me_;
  std::deque<Transfer> out_[kMaxRanks], in_[kMaxRanks];
  bool stuck_ = false;
};

}  // namespace

Segment* map_segment(uint64_t id) {
  const int fd = shm_open(name_of(id).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Segment)) != 0) die("no shared memory");
  void* memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) die("shared memory cannot be mapped");
  return static_cast<Segment*>(memory);
}

void unlink_segment(uint64_t id) { shm_unlink(name_of(id).c_str()); }

void ring(std::atomic<uint32_t>& bell) {
  bell.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &bell, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void wait(std::atomic<uint32_t>& bell, uint32_t seen) {
  const timespec nap = {0, 20'000'000};
  syscall(SYS_futex, &bell, FUTEX_WAIT, seen, &nap, nullptr, 0);
}

void exchange(Segment& segment, int me, const std::vector<Message>& sends, const std::vector<Message>& receives,
              const std::function<bool()>& aborted) {
  Exchange all(segment, me);
  all.add(sends, receives);
  for (;;) {
    const uint32_t seen = segment.bells[me].load(std::memory_order_seq_cst);
    const bool moved = !all.stuck() && all.move();
    if (all.over() || aborted()) return;
    if (!moved) wait(segment.bells[me], seen);
  }
}

}  // namespace substitute
