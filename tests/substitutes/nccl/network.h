// The substitute for links between GPUs: pipes in shared memory, one for each pair and direction of a communicator.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace substitute {

constexpr int kMaxRanks = 16;
constexpr size_t kPipeBytes = 32 << 10;
constexpr int kMaxSplits = 1024;

struct Pipe {  // one writer, one reader
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  char data[kPipeBytes];
};
struct Split {
  std::atomic<uint32_t> arrived;
  int color[kMaxRanks], key[kMaxRanks];
};
struct Place {  // of a rank, as NCCL compares them
  uint64_t host;
  int device;
};
struct Segment {  // zero when it is made
  std::atomic<uint32_t> joined;
  Place places[kMaxRanks];  // written before a rank joins
  // Sends and receives that a rank has once called, by its peer.
  std::atomic<bool> sends[kMaxRanks][kMaxRanks], receives[kMaxRanks][kMaxRanks];
  alignas(64) std::atomic<uint32_t> bells[kMaxRanks];  // futexes: something came, or went
  Split splits[kMaxSplits];
  Pipe pipes[kMaxRanks][kMaxRanks];  // from, to
};

// The segment of this number, made by whoever comes first.
Segment* map_segment(uint64_t id);
void unlink_segment(uint64_t id);
void ring(std::atomic<uint32_t>& bell);
void wait(std::atomic<uint32_t>& bell, uint32_t seen);  // until it rings, 20 ms at most

struct Message {
  int peer;
  char* data;
  size_t bytes;
  uint64_t what;  // compared on both sides: NCCL's kernels would wait for each other for ever
};

// All of them at once, in order for each peer. Returns when all have moved, or `aborted`.
void exchange(Segment& segment, int me, const std::vector<Message>& sends, const std::vector<Message>& receives,
              const std::function<bool()>& aborted);

}  // namespace substitute
