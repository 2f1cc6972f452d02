// Pairwise reduce-scatter: each member exchanges slices with the others, one after the other, and adds each to its own
// while both are in the cache. It suits large buffers when many ranks share a core.
//
// Only the result is written, whereas halving reads and writes partial sums of half of the buffer, which a cache has
// evicted by then. Sums are in the order of the distances, so they are reproducible, but not in rank order.
#include <algorithm>

#include "comm/collectives/slices.h"

namespace prun {

void reduce_scatter_pairwise(Group& group, const CollCall& call) {
  constexpr int64_t kChunkBytes = 512 << 10;  // the sum and the received chunk together fit in an L2 cache
  const int others = group.size - 1;
  const int64_t item = dtype_bytes(call.dtype), chunk = kChunkBytes / item, slice = call.count;
  const int64_t turns = std::max<int64_t>(1, (slice + chunk - 1) / chunk) * others;
  const int depth = static_cast<int>(std::min<int64_t>(group.wire.ahead(), turns));
  const auto* send = static_cast<const std::byte*>(call.send);
  auto* recv = static_cast<std::byte*>(call.recv);
  std::byte* room = group.scratch.get(depth * std::min(slice, chunk) * item);
  auto slot = [&](int64_t turn) { return room + turn % depth * std::min(slice, chunk) * item; };
  // The turns of one chunk are consecutive.
  auto begin = [&](int64_t turn) { return turn / others * chunk; };
  auto count = [&](int64_t turn) { return std::min(slice - begin(turn), chunk); };
  auto post = [&](int64_t turn) {
    const int distance = static_cast<int>(turn % others) + 1, to = group.right(distance);
    group.wire.recv(group.left(distance), slot(turn), count(turn) * item);
    group.wire.send(to, send + (to * slice + begin(turn)) * item, count(turn) * item);
    return group.wire.post();
  };
  int64_t tickets[Wire::kFarAhead] = {};
  int64_t posted = 0;
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (; posted < std::min(turn + depth, turns); ++posted) tickets[posted % depth] = post(posted);
    group.wire.wait(tickets[turn % depth]);
    std::byte* const sum = recv + begin(turn) * item;
    const bool first = turn % others == 0, last = turn % others == others - 1;
    const void* inputs[2] = {first ? send + (group.index * slice + begin(turn)) * item : sum, slot(turn)};
    if (slice > 0) reduce(call.dtype, last ? call.redop : partial_op(call), inputs, 2, sum, count(turn), group.size);
  }
}

}  // namespace prun
