// Collectives that send every block directly from its owner to its receiver: gather, scatter, all-gather and
// all-to-all. Each member exchanges with a window of peers at a time. It starts with its right neighbour, so that no
// rank is the first peer of all. Large blocks go to two peers at a time, so that the kernel's buffers of all
// connections fit in a cache when many ranks share a core.
#include <algorithm>
#include <numeric>

#include "comm/collectives/algorithm.h"

namespace prun {
namespace {

constexpr int kPeersPerBatch = 32;
constexpr int64_t kLarge = 256 << 10;

struct Block {
  const void* data = nullptr;
  int64_t bytes = -1;  // -1 = no message, not even an empty one
};

Block block(const void* base, int64_t offset, int64_t bytes) {
  return {static_cast<const std::byte*>(base) + offset, bytes};
}

// Sends out(m) to member m and receives in(m) from it; copies this member's own block.
template <typename Out, typename In>
void exchange(Group& group, Out out, In in) {
  int64_t tickets[2] = {-1, -1};
  int posted = 0;
  for (int d = 1; d < group.size; ++d) {
    const Block to = out(group.right(d)), from = in(group.left(d));
    const bool large = std::max(to.bytes, from.bytes) >= kLarge;
    if (large) group.wire.wait(tickets[posted % 2]);
    if (from.bytes >= 0) group.wire.recv(group.left(d), const_cast<void*>(from.data), from.bytes);
    if (to.bytes >= 0) group.wire.send(group.right(d), to.data, to.bytes);
    if (large)
      tickets[posted++ % 2] = group.wire.post();
    else if (d % kPeersPerBatch == 0)
      group.wire.flush();
  }
  const int64_t ticket = group.wire.post();
  const Block from = out(group.index), to = in(group.index);
  PRUN_CHECK(from.bytes == to.bytes, "a rank's own block has two sizes");
  copy_block(const_cast<void*>(to.data), from.data, from.bytes);
  group.wire.wait(ticket);
}

int64_t before(const int64_t* counts, int member) { return std::accumulate(counts, counts + member, int64_t{0}); }

}  // namespace

void all_gather_direct(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  exchange(
      group, [&](int) { return block(call.send, 0, bytes); },
      [&](int m) { return block(call.recv, m * bytes, bytes); });
}

void all_gather_v_direct(Group& group, const CollCall& call) {
  const int64_t item = dtype_bytes(call.dtype);
  exchange(
      group, [&](int) { return block(call.send, 0, call.counts[group.index] * item); },
      [&](int m) { return block(call.recv, before(call.counts, m) * item, call.counts[m] * item); });
}

void gather_direct(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  const bool root = group.index == call.root;
  exchange(
      group, [&](int m) { return m == call.root ? block(call.send, 0, bytes) : Block{}; },
      [&](int m) { return root ? block(call.recv, m * bytes, bytes) : Block{}; });
}

void scatter_direct(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  const bool root = group.index == call.root;
  exchange(
      group, [&](int m) { return root ? block(call.send, m * bytes, bytes) : Block{}; },
      [&](int m) { return m == call.root ? block(call.recv, 0, bytes) : Block{}; });
}

void all_to_all_direct(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  exchange(
      group, [&](int m) { return block(call.send, m * bytes, bytes); },
      [&](int m) { return block(call.recv, m * bytes, bytes); });
}

void all_to_all_v_direct(Group& group, const CollCall& call) {
  const int64_t item = dtype_bytes(call.dtype);
  exchange(
      group, [&](int m) { return block(call.send, before(call.counts, m) * item, call.counts[m] * item); },
      [&](int m) { return block(call.recv, before(call.recv_counts, m) * item, call.recv_counts[m] * item); });
}

}  // namespace prun
