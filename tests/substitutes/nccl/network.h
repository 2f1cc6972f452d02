// The substitute for links between GPUs: pipes in shared memory, one per pair and direction of a communicator.
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
struct Place {  // host and device of a rank, as NCCL compares them
  uint64_t host;
  int device;
};
struct Segment {  // zero-initialized
  std::atomic<uint32_t> joined;
  Place places[kMaxRanks];  // written before a rank joins
  // Whether a rank has called a send or receive with a peer.
  std::atomic<bool> sends[kMaxRanks][kMaxRanks], receives[kMaxRanks][kMaxRanks];
  alignas(64) std::atomic<uint32_t> bells[kMaxRanks];  // futexes: data arrived or was consumed
  Split splits[kMaxSplits];
  Pipe pipes[kMaxRanks][kMaxRanks];  // from, to
};

// Maps the segment of this number; the first caller creates it.
Segment* map_segment(uint64_t id);
void unlink_segment(uint64_t id);
void ring(std::atomic<uint32_t>& bell);
void wait(std::atomic<uint32_t>& bell, uint32_t seen);  // until it rings, at most 20 ms

struct Message {
  int peer;
  char* data;
  size_t bytes;
  uint64_t what;  // compared on both sides; NCCL's kernels would wait for each other forever
};

// Moves all messages concurrently, in order per peer. Returns when all have moved, or `aborted`.
void exchange(Segment& segment, int me, const std::vector<Message>& sends, const std::vector<Message>& receives,
              const std::function<bool()>& aborted);

}  // namespace substitute
