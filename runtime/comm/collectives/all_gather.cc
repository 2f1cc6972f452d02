// All-gather: Bruck's for small blocks, straight from every member to every other, or around a ring.
#include <cstring>
#include <numeric>

#include "comm/collectives/algorithm.h"

namespace prun {
namespace {

void copy_own(const void* from, std::byte* to, int64_t bytes) {
  if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

// Bruck et al. 1997.
void all_gather_bruck(Group& group, const CollCall& call) {
  const int n = group.size;
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  std::byte* blocks = group.scratch.get(n * bytes);  // blocks[d]: of member left(d)
  copy_own(call.send, blocks, bytes);
  for (int have = 1; have < n; have *= 2) {
    int64_t part = std::min(have, n - have) * bytes;
    group.wire.send(group.right(have), blocks, part);
    group.wire.recv(group.left(have), blocks + have * bytes, part);
    group.wire.flush();
  }
  auto* recv = static_cast<std::byte*>(call.recv);
  for (int d = 0; d < n; ++d) copy_own(blocks + d * bytes, recv + group.left(d) * bytes, bytes);
}

void all_gather_direct(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  auto* recv = static_cast<std::byte*>(call.recv);
  for (int d = 1; d < group.size; ++d) {
    group.wire.recv(group.left(d), recv + group.left(d) * bytes, bytes);
    group.wire.send(group.right(d), call.send, bytes);
    if (d % kPeersPerBatch == 0) group.wire.flush();
  }
  int64_t ticket = group.wire.post();
  copy_own(call.send, recv + group.index * bytes, bytes);
  group.wire.wait(ticket);
}

void all_gather_ring(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  auto* recv = static_cast<std::byte*>(call.recv);
  copy_own(call.send, recv + group.index * bytes, bytes);
  for (int step = 0; step < group.size - 1; ++step) {
    group.wire.send(group.right(), recv + group.left(step) * bytes, bytes);
    group.wire.recv(group.left(), recv + group.left(step + 1) * bytes, bytes);
    group.wire.flush();
  }
}

void all_gather_v_direct(Group& group, const CollCall& call) {
  const int64_t item = dtype_bytes(call.dtype);
  auto* recv = static_cast<std::byte*>(call.recv);
  auto at = [&](int member) { return recv + std::accumulate(call.counts, call.counts + member, int64_t{0}) * item; };
  const int64_t mine = call.counts[group.index] * item;
  for (int d = 1; d < group.size; ++d) {
    int from = group.left(d);
    group.wire.recv(from, at(from), call.counts[from] * item);
    group.wire.send(group.right(d), call.send, mine);
    if (d % kPeersPerBatch == 0) group.wire.flush();
  }
  int64_t ticket = group.wire.post();
  copy_own(call.send, at(group.index), mine);
  group.wire.wait(ticket);
}

}  // namespace prun
