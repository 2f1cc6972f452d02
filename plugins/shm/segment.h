// What lies in the memory that ranks share: a control segment per rank, and the arenas of its program.
//
// Each word has one writer and a cache line of its own. A rank's segment holds what it receives (inboxes, written by
// one peer each) and what it posts (comm blocks, written by itself). Offsets differ from rank to rank by odd
// multiples of a line: equal offsets would meet in the same cache sets (PEERS: 538 us instead of 65).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "prun/sdk/descriptor.h"
#include "prun/transport.h"

namespace prun::shm {

inline constexpr size_t kPage = 4096;
inline constexpr uint32_t kLayoutVersion = 3;         // of everything below; peers with another one are refused
inline constexpr int kMaxArenas = 64;                 // that peers map; more than that is still memory, but staged
inline constexpr int kMaxComms = 512;                 // at once, in one context
inline constexpr size_t kSlotBytes = 64 << 10;        // largest message that a collective posts beside its flag
inline constexpr size_t kStageBytes = 2 << 20;        // a ring of chunks of the staged collectives; more than an L2
inline constexpr size_t kMaxChunk = kStageBytes / 4;  // three are in use at once
inline constexpr size_t kRingBytes = 128 << 10;       // records of point to point, from one peer
inline constexpr size_t kEagerBytes = 16 << 10;       // messages up to this travel inside their record
inline constexpr size_t kBounceBytes = 64 << 10;      // a chunk of what is neither small nor in an arena
inline constexpr size_t kBounceChunks = 8;

enum class RankState : uint32_t { running, closed, aborted };

// Where waiting threads of a rank sleep. Peers ring it only while somebody sleeps.
struct Doorbell {
  alignas(128) std::atomic<uint32_t> word;      // futex
  alignas(128) std::atomic<uint32_t> sleepers;  // written by the owner's threads
};

// What one peer sends to the owner of the segment.
struct Inbox {
  alignas(128) std::atomic<uint64_t> tail;           // bytes put in, by the peer
  alignas(128) std::atomic<uint64_t> head;           // bytes taken out, by the owner
  alignas(128) std::atomic<uint64_t> bounce_filled;  // chunks, by the peer
  alignas(128) std::atomic<uint64_t> bounce_taken;   // chunks, by the owner
  alignas(128) std::byte ring[kRingBytes];
  std::byte bounce[kBounceChunks * kBounceBytes];
  std::atomic<uint64_t> signals[PRUN_MAX_SIGNAL + 1];  // raised by the peer since connect
};

// Where a buffer of a call lies: arena -1 is memory that peers cannot see.
struct Place {
  int32_t arena;
  uint32_t pad;
  uint64_t offset;
};

inline constexpr size_t kLinePayload = 32;

// One posted call. `number` is written last; readers take the rest only once it has the value they expect.
struct alignas(128) CallLine {
  std::atomic<uint64_t> number;  // calls posted in this block so far; never falls, also not when a comm is freed
  uint64_t fingerprint, count, sequence;
  std::byte payload[kLinePayload];  // the whole input if it fits, so that data arrives with its flag
  Place send, recv;
};

struct CommBlock {
  CallLine line[2];                             // call k uses line k & 1
  alignas(128) std::atomic<uint64_t> progress;  // steps of long collectives; never falls
  alignas(128) std::atomic<uint64_t> done;      // calls completed: a freed block waits for its peers to get there
  Doorbell bell;
  alignas(128) std::byte slot[2][kSlotBytes];
  std::byte in[kStageBytes];
  std::byte out[kStageBytes];
  std::byte odd[11 * 128];  // keeps neighbours off power-of-two distances
};

struct SegmentHeader {
  alignas(128) std::atomic<uint32_t> state;  // RankState
  Doorbell bell;                             // of point to point
};

// Byte offsets inside the control segment of local rank `index` among `ranks`.
struct SegmentLayout {
  int ranks = 0, index = 0;
  size_t skew() const { return static_cast<size_t>(index % 7) * 9 * 128; }
  size_t inbox_stride() const { return sizeof(Inbox) + 3 * 128; }
  size_t inbox(int from) const { return kPage + static_cast<size_t>(from) * inbox_stride(); }
  size_t block(int slot) const {
    const size_t start = (inbox(ranks) + kPage - 1) / kPage * kPage + skew();
    return start + static_cast<size_t>(slot) * sizeof(CommBlock);
  }
  size_t bytes() const { return (block(kMaxComms) + 2 * kPage) / kPage * kPage; }
  size_t control_bytes() const { return block(0) / kPage * kPage; }  // in front of the blocks
};

// Memory behind a memfd that cannot shrink, zeroed; only the first `mapped` bytes are mapped. Empty where it fails, and
// errno says why.
struct SharedMemory {
  sdk::Descriptor fd;  // until all peers have mapped it
  sdk::Mapping mapping;
};
SharedMemory create_memory(const char* name, size_t bytes, size_t mapped, bool huge);
// A peer's memfd; refuses one that is smaller than it says or may still shrink.
sdk::Mapping map_peer(const sdk::Descriptor& fd, size_t bytes, size_t mapped, bool huge);
// A part of it, whose addresses are taken only once it is needed: all blocks of a segment are 2 GiB. `start`: the page
// that the part begins in.
sdk::Mapping map_part(const sdk::Descriptor& fd, size_t start, size_t bytes);

// How far into an arena the memory of this local rank starts.
size_t arena_skew(int local_index, int arena);

}  // namespace prun::shm
