// Divides a buffer among the members of a group, and reduces a slice: its owner collects all members' parts of it,
// chunk by chunk, and sums them in member order. The volume is that of a ring, with one hop.
#pragma once
#include <algorithm>
#include <cstdint>

#include "comm/collectives/algorithm.h"
#include "comm/reduce.h"

namespace prun {

// Member j owns [begin(j), end(j)), in elements.
class Slices {
 public:
  // Divides `count` elements among `size` members. Slices keep the buffer's cache-line alignment; the last may be
  // shorter.
  static Slices divide(int64_t count, int size, int64_t item_bytes) {
    int64_t line = std::max<int64_t>(1, 64 / item_bytes);
    return Slices(count, ((count + size - 1) / size + line - 1) / line * line);
  }
  static Slices equal(int64_t length, int size) { return Slices(length * size, length); }
  int64_t length() const { return length_; }
  int64_t begin(int member) const { return std::min(count_, member * length_); }
  int64_t end(int member) const { return std::min(count_, (member + 1) * length_); }

 private:
  Slices(int64_t count, int64_t length) : count_(count), length_(length) {}
  int64_t count_, length_;
};

// Returns the elements of a chunk: `buffers` of them fit in an L2 cache, and each is large enough to pipeline.
inline int64_t chunk_elements(int64_t item_bytes, int buffers) {
  constexpr int64_t kCacheBytes = 1 << 20, kLargest = 256 << 10, kSmallest = 16 << 10;
  return std::clamp(kCacheBytes / std::max(1, buffers), kSmallest, kLargest) / item_bytes / 64 * 64;
}

// Returns the number of rounds in flight, where each round has a chunk to or from each of `peers`.
inline int rounds_ahead(const Group& group, int64_t chunk_bytes, int peers) {
  constexpr int64_t kMostBytes = 8 << 20;
  return static_cast<int>(
      std::clamp<int64_t>(kMostBytes / std::max<int64_t>(1, chunk_bytes * peers), 2, group.wire.ahead()));
}

// The chunks of each slice: elements [begin, end) of the whole buffer.
struct Chunks {
  const Slices& slices;
  int64_t chunk;
  int64_t rounds() const { return std::max<int64_t>(1, (slices.length() + chunk - 1) / chunk); }
  int64_t begin(int member, int64_t round) const {
    return std::min(slices.end(member), slices.begin(member) + round * chunk);
  }
  int64_t end(int member, int64_t round) const { return begin(member, round + 1); }
};

// Calls emit(round, reduced) for each chunk of this member's slice, in order; `out(round)` is its destination. The
// first `extra` bytes of the group's scratch are the caller's.
template <typename Out, typename Emit>
void reduce_own_slice(Group& group, const CollCall& call, const Chunks& chunks, int64_t extra, Out out, Emit emit) {
  const int n = group.size;
  const int64_t item = dtype_bytes(call.dtype), slot_bytes = chunks.chunk * item;
  const int depth = rounds_ahead(group, slot_bytes, n - 1);
  const auto* send = static_cast<const std::byte*>(call.send);
  const int64_t pointers = round_up(n * static_cast<int64_t>(sizeof(void*)), 64);
  std::byte* room = group.scratch.get(extra + pointers + depth * (n - 1) * slot_bytes) + extra;
  auto** inputs = reinterpret_cast<const void**>(room);
  auto slot = [&](int64_t round, int distance) {
    return room + pointers + ((round % depth) * (n - 1) + distance - 1) * slot_bytes;
  };
  auto post = [&](int64_t round) {
    int64_t mine = (chunks.end(group.index, round) - chunks.begin(group.index, round)) * item;
    for (int d = 1; d < n; ++d) {
      int to = group.right(d);
      int64_t begin = chunks.begin(to, round), end = chunks.end(to, round);
      group.wire.recv(group.left(d), slot(round, d), mine);
      group.wire.send(to, send + begin * item, (end - begin) * item);
    }
    return group.wire.post();
  };
  int64_t tickets[Wire::kFarAhead] = {};
  int64_t posted = 0;
  for (int64_t round = 0; round < chunks.rounds(); ++round) {
    for (; posted < std::min<int64_t>(round + depth, chunks.rounds()); ++posted) tickets[posted % depth] = post(posted);
    group.wire.wait(tickets[round % depth]);
    int64_t begin = chunks.begin(group.index, round), count = chunks.end(group.index, round) - begin;
    for (int d = 1; d < n; ++d) inputs[group.left(d)] = slot(round, d);
    inputs[group.index] = send + begin * item;
    void* to = out(round);
    if (count > 0) reduce(call.dtype, call.redop, inputs, n, to, count, n);
    emit(round, to);
  }
}

}  // namespace prun
