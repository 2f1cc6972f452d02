// Reduce to a root. Small inputs are gathered and summed there; large ones are summed in slices by all members first,
// so that neither the root's network nor its core does all the work.
#include "comm/collectives/slices.h"

namespace prun {

void reduce_gather(Group& group, const CollCall& call) {
  const int n = group.size;
  const int64_t bytes = call.count * dtype_bytes(call.dtype), slot = round_up(bytes, 64);
  if (group.index != call.root) {
    group.wire.send(call.root, call.send, bytes);
    group.wire.flush();
    return;
  }
  const int64_t pointers = round_up(n * static_cast<int64_t>(sizeof(void*)), 64);
  std::byte* room = group.scratch.get(pointers + n * slot);
  auto** inputs = reinterpret_cast<const void**>(room);
  for (int member = 0; member < n; ++member) {
    inputs[member] = member == group.index ? call.send : room + pointers + member * slot;
    if (member != group.index) group.wire.recv(member, room + pointers + member * slot, bytes);
  }
  group.wire.flush();
  if (call.count > 0) reduce(call.dtype, call.redop, inputs, n, call.recv, call.count, n);
}

void reduce_direct(Group& group, const CollCall& call) {
  constexpr int kDepth = 2;
  const int64_t item = dtype_bytes(call.dtype);
  Slices slices = Slices::divide(call.count, group.size, item);
  Chunks chunks{slices, chunk_elements(item, group.size)};
  const bool root = group.index == call.root;
  const int64_t slot = chunks.chunk * item;
  auto* recv = static_cast<std::byte*>(call.recv);
  int64_t tickets[kDepth] = {-1, -1};
  // Members other than the root have no result buffer: their results wait at the start of scratch until they are sent.
  auto out = [&](int64_t round) -> void* {
    if (root) return recv + chunks.begin(group.index, round) * item;
    if (round >= kDepth) group.wire.wait(tickets[round % kDepth]);
    return group.scratch.get(0) + round % kDepth * slot;
  };
  reduce_own_slice(group, call, chunks, kDepth * slot, out, [&](int64_t round, void* reduced) {
    if (root && round >= kDepth) group.wire.wait(tickets[round % kDepth]);
    if (root) {
      for (int d = 1; d < group.size; ++d) {
        int from = group.left(d);
        int64_t begin = chunks.begin(from, round), end = chunks.end(from, round);
        group.wire.recv(from, recv + begin * item, (end - begin) * item);
      }
    } else {
      group.wire.send(call.root, reduced, (chunks.end(group.index, round) - chunks.begin(group.index, round)) * item);
    }
    tickets[round % kDepth] = group.wire.post();
  });
}

}  // namespace prun
