// All-reduce by gathering (small), by slices sent directly to their owners, and around a ring.
//
// The first two sum in member order, so results are bitwise identical on every rank and run, and rank_order is free.
#include <cstring>

#include "comm/collectives/slices.h"

namespace prun {

// Runs ceil(log2 n) rounds that each forward everything gathered so far, then n local additions.
void all_reduce_gather(Group& group, const CollCall& call) {
  const int n = group.size;
  const int64_t bytes = call.count * dtype_bytes(call.dtype), slot = round_up(bytes, 64);
  const int64_t pointers = round_up(n * static_cast<int64_t>(sizeof(void*)), 64);
  std::byte* room = group.scratch.get(pointers + n * slot);
  auto** inputs = reinterpret_cast<const void**>(room);
  std::byte* blocks = room + pointers;  // blocks[d]: the input of member left(d)
  if (bytes > 0) std::memcpy(blocks, call.send, bytes);
  bruck_exchange(group, blocks, bytes == 0 ? 0 : slot);
  for (int d = 0; d < n; ++d) inputs[group.left(d)] = blocks + d * slot;
  reduce(call.dtype, call.redop, inputs, n, call.recv, call.count, n);
}

void all_reduce_direct(Group& group, const CollCall& call) {
  const int64_t item = dtype_bytes(call.dtype);
  Slices slices = Slices::divide(call.count, group.size, item);
  Chunks chunks{slices, chunk_elements(item, group.size)};
  auto* recv = static_cast<std::byte*>(call.recv);
  const int depth = rounds_ahead(group, chunks.chunk * item, group.size - 1);
  int64_t tickets[Wire::kFarAhead] = {};
  auto out = [&](int64_t round) { return recv + chunks.begin(group.index, round) * item; };
  // In place, others' results overwrite only data that have been sent, because this round has been waited for.
  reduce_own_slice(group, call, chunks, 0, out, [&](int64_t round, void* reduced) {
    if (round >= depth) group.wire.wait(tickets[round % depth]);
    int64_t mine = (chunks.end(group.index, round) - chunks.begin(group.index, round)) * item;
    for (int d = 1; d < group.size; ++d) {
      int from = group.left(d);
      int64_t begin = chunks.begin(from, round), end = chunks.end(from, round);
      group.wire.recv(from, recv + begin * item, (end - begin) * item);
      group.wire.send(group.right(d), reduced, mine);
    }
    tickets[round % depth] = group.wire.post();
  });
}

// Implements the ring of Patarasu and Yuan 2009 with each step in chunks: a chunk is forwarded as soon as it is summed.
void all_reduce_ring(Group& group, const CollCall& call) {
  const int n = group.size;
  const int64_t item = dtype_bytes(call.dtype);
  Slices slices = Slices::divide(call.count, n, item);
  Chunks chunks{slices, chunk_elements(item, 4)};
  const int64_t rounds = chunks.rounds(), slot = chunks.chunk * item;
  const auto* send = static_cast<const std::byte*>(call.send);
  auto* recv = static_cast<std::byte*>(call.recv);
  std::byte* room = group.scratch.get(2 * slot);
  auto range = [&](int member, int64_t round) { return chunks.begin(member, round) * item; };
  auto bytes = [&](int member, int64_t round) {
    return (chunks.end(member, round) - chunks.begin(member, round)) * item;
  };
  // Tick t: chunk t % rounds of step t / rounds. First n-1 reduce-scatter steps, then n-1 all-gather steps.
  const int64_t ticks = 2 * (n - 1) * rounds;
  auto step = [&](int64_t tick) { return static_cast<int>(tick / rounds); };
  auto post = [&](int64_t tick) {
    const int summing = step(tick), handing = summing - (n - 1);
    int to_slice = handing < 0 ? group.left(summing) : group.left((handing + n - 1) % n);
    int from_slice = handing < 0 ? group.left(summing + 1) : group.left(handing);
    int64_t round = tick % rounds;
    const std::byte* from = (step(tick) == 0 ? send : recv) + range(to_slice, round);
    group.wire.send(group.right(), from, bytes(to_slice, round));
    std::byte* into = step(tick) < n - 1 ? room + tick % 2 * slot : recv + range(from_slice, round);
    group.wire.recv(group.left(), into, bytes(from_slice, round));
    return group.wire.post();
  };
  int64_t tickets[2] = {post(0), 0};
  for (int64_t tick = 0; tick < ticks; ++tick) {
    // The data of the next tick were summed `rounds` ticks before it. With one chunk per slice, that is the current
    // tick.
    bool ahead = rounds > 1 && tick + 1 < ticks;
    if (ahead) tickets[(tick + 1) % 2] = post(tick + 1);
    group.wire.wait(tickets[tick % 2]);
    if (step(tick) < n - 1) {
      int slice = group.left(step(tick) + 1);
      int64_t at = range(slice, tick % rounds);
      const void* inputs[2] = {room + tick % 2 * slot, send + at};
      bool last = step(tick) == n - 2;
      reduce(call.dtype, last ? call.redop : partial_op(call), inputs, 2, recv + at, bytes(slice, tick % rounds) / item,
             n);
    }
    if (!ahead && tick + 1 < ticks) tickets[(tick + 1) % 2] = post(tick + 1);
  }
}

}  // namespace prun
