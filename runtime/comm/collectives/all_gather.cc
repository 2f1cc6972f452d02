// All-gather: Bruck's algorithm for small blocks, and a ring; exchange.cc sends blocks directly.
#include <algorithm>

#include "comm/collectives/algorithm.h"

namespace prun {
void bruck_exchange(Group& group, std::byte* blocks, int64_t bytes) {
  for (int have = 1; have < group.size; have *= 2) {
    const int64_t part = std::min(have, group.size - have) * bytes;
    group.wire.send(group.right(have), blocks, part);
    group.wire.recv(group.left(have), blocks + have * bytes, part);
    group.wire.flush();
  }
}

void all_gather_bruck(Group& group, const CollCall& call) {
  const int n = group.size;
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  std::byte* blocks = group.scratch.get(n * bytes);  // blocks[d] is member left(d)'s
  copy_block(blocks, call.send, bytes);
  bruck_exchange(group, blocks, bytes);
  auto* recv = static_cast<std::byte*>(call.recv);
  for (int d = 0; d < n; ++d) copy_block(recv + group.left(d) * bytes, blocks + d * bytes, bytes);
}

void all_gather_ring(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  auto* recv = static_cast<std::byte*>(call.recv);
  // Sends two halves, so that one is in flight while this member waits for the other.
  const int64_t half = std::min(bytes, round_up((bytes + 1) / 2, 64));
  const int ticks = 2 * (group.size - 1);
  auto post = [&](int tick) {
    const int step = tick / 2;
    const int64_t at = tick % 2 * half, part = tick % 2 == 0 ? half : bytes - half;
    const auto* next = step == 0 ? static_cast<const std::byte*>(call.send) : recv + group.left(step) * bytes;
    group.wire.send(group.right(), next + at, part);
    group.wire.recv(group.left(), recv + group.left(step + 1) * bytes + at, part);
    return group.wire.post();
  };
  int64_t tickets[2] = {post(0), post(1)};
  copy_block(recv + group.index * bytes, call.send, bytes);
  for (int tick = 0; tick < ticks; ++tick) {
    group.wire.wait(tickets[tick % 2]);
    if (tick + 2 < ticks) tickets[tick % 2] = post(tick + 2);
  }
}

}  // namespace prun
