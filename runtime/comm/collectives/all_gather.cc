// All-gather: Bruck's for small blocks, and around a ring; exchange.cc sends blocks straight.
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
  std::byte* blocks = group.scratch.get(n * bytes);  // blocks[d]: of member left(d)
  copy_block(blocks, call.send, bytes);
  bruck_exchange(group, blocks, bytes);
  auto* recv = static_cast<std::byte*>(call.recv);
  for (int d = 0; d < n; ++d) copy_block(recv + group.left(d) * bytes, blocks + d * bytes, bytes);
}

void all_gather_ring(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  auto* recv = static_cast<std::byte*>(call.recv);
  copy_block(recv + group.index * bytes, call.send, bytes);
  for (int step = 0; step < group.size - 1; ++step) {
    group.wire.send(group.right(), recv + group.left(step) * bytes, bytes);
    group.wire.recv(group.left(), recv + group.left(step + 1) * bytes, bytes);
    group.wire.flush();
  }
}

}  // namespace prun
