// Layout of shared memory: a control segment per rank, and the arenas of its program.
//
//   control segment of rank i               Inbox of peer p                      CommBlock
//   +------------------+                    +----------------------------+       +-----------------------+
//   | header, bell     |                    | ring   128 KiB: records    |       | 2 call lines, counters|
//   | Inbox of peer 0  |  written by peer 0 | bounce 8 chunks of 64 KiB  |       | slot[2]  64 KiB each  |
//   | ...              |                    | signals                    |       | in, out  2 MiB each   |
//   | skew             |                    +----------------------------+       +-----------------------+
//   | CommBlock 0..511 |  written by rank i
//   +------------------+
//
// Each word has one writer and its own cache line. Offsets differ between ranks by odd multiples of a line, because
// equal offsets would conflict in the same cache sets.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "prun/sdk/descriptor.h"
#include "prun/transport.h"

namespace prun::shm {

inline constexpr size_t kPage = 4096;
inline constexpr uint32_t kLayoutVersion = 3;   // version of the layout below; a peer with another version is rejected
inline constexpr int kMaxArenas = 64;           // limit of arenas that peers map; mem_alloc throws beyond it
inline constexpr int kMaxComms = 512;           // limit of simultaneous communicators in one context
inline constexpr size_t kSlotBytes = 64 << 10;  // largest message that a collective posts with its flag
inline constexpr size_t kStageBytes = 2 << 20;  // ring of chunks of the staged collectives; larger than an L2
inline constexpr size_t kMaxChunk = kStageBytes / 4;  // largest chunk; three chunks are in use at once
inline constexpr size_t kRingBytes = 128 << 10;       // ring for the records of point-to-point messages from one peer
inline constexpr size_t kEagerBytes = 16 << 10;       // largest message stored inside its record
inline constexpr size_t kBounceBytes = 64 << 10;      // chunk of a message that is neither eager nor in an arena
inline constexpr size_t kBounceChunks = 8;

enum class RankState : uint32_t { running, closed, aborted };

// The place where waiting threads of a rank sleep. Peers ring it only if `sleepers` is not 0.
struct Doorbell {
  alignas(128) std::atomic<uint32_t> word;      // futex
  alignas(128) std::atomic<uint32_t> sleepers;  // written by the owner's threads
};

// Messages from one peer to the owner of the segment.
struct Inbox {
  alignas(128) std::atomic<uint64_t> tail;           // bytes produced by the peer
  alignas(128) std::atomic<uint64_t> head;           // bytes consumed by the owner
  alignas(128) std::atomic<uint64_t> bounce_filled;  // chunks produced by the peer
  alignas(128) std::atomic<uint64_t> bounce_taken;   // chunks consumed by the owner
  alignas(128) std::byte ring[kRingBytes];
  std::byte bounce[kBounceChunks * kBounceBytes];
  std::atomic<uint64_t> signals[PRUN_MAX_SIGNAL + 1];  // counts of the signals that the peer has raised since connect
};

// Location of a call's buffer; arena -1 = memory that peers do not map.
struct Place {
  int32_t arena;
  uint32_t pad;
  uint64_t offset;
};

inline constexpr size_t kLinePayload = 32;

// One posted call. `number` is stored last; readers use the other fields only once it has the expected value.
struct alignas(128) CallLine {
  std::atomic<uint64_t> number;  // count of calls posted in this block; never decreases, also when a comm is freed
  uint64_t fingerprint, count, sequence;
  std::byte payload[kLinePayload];  // the whole input if it fits, so that data arrives with its flag
  Place send, recv;
};

struct CommBlock {
  CallLine line[2];                             // call k uses line k & 1
  alignas(128) std::atomic<uint64_t> progress;  // steps of long collectives that this rank has passed; never decreases
  alignas(128) std::atomic<uint64_t> done;      // completed calls; all peers must have completed as many before reuse
  Doorbell bell;
  alignas(128) std::byte slot[2][kSlotBytes];
  std::byte in[kStageBytes];
  std::byte out[kStageBytes];
  std::byte odd[11 * 128];  // keeps neighbours off power-of-two distances
};

struct SegmentHeader {
  alignas(128) std::atomic<uint32_t> state;  // RankState
  Doorbell bell;                             // bell for point-to-point messages
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
  size_t control_bytes() const { return block(0) / kPage * kPage; }  // bytes before the blocks
};

// Zeroed memory behind a memfd that cannot shrink. Only the first `mapped` bytes are mapped. On failure the mapping is
// empty and errno is set.
struct SharedMemory {
  sdk::Descriptor fd;  // open until all peers have mapped it
  sdk::Mapping mapping;
};
SharedMemory create_memory(const char* name, size_t bytes, size_t mapped, bool huge);
// Maps a peer's memfd; rejects one that is smaller than `bytes` or may still shrink.
sdk::Mapping map_peer(const sdk::Descriptor& fd, size_t bytes, size_t mapped, bool huge);
// Maps a part of a peer's memfd on demand, because all blocks of a segment take 2 GiB of addresses. `start` is the
// offset of the part's first page.
sdk::Mapping map_part(const sdk::Descriptor& fd, size_t start, size_t bytes);

// Returns the offset of the caller's memory in an arena of this local rank.
size_t arena_skew(int local_index, int arena);

}  // namespace prun::shm
