// Reduce-scatter algorithms that write only the member's own slice, unlike an all-reduce.
#include "comm/collectives/slices.h"

namespace prun {

void reduce_scatter_direct(Group& group, const CollCall& call) {
  const int64_t item = dtype_bytes(call.dtype);
  Slices slices = Slices::equal(call.count, group.size);
  Chunks chunks{slices, chunk_elements(item, group.size)};
  auto* recv = static_cast<std::byte*>(call.recv);
  auto out = [&](int64_t round) { return recv + round * chunks.chunk * item; };
  reduce_own_slice(group, call, chunks, 0, out, [](int64_t, void*) {});
}

// Partial sums go through scratch, because the input must not change: slice s starts at its right neighbour and reaches
// its owner in the last step.
void reduce_scatter_ring(Group& group, const CollCall& call) {
  const int n = group.size;
  const int64_t item = dtype_bytes(call.dtype), chunk = chunk_elements(item, 4);
  const int64_t rounds = std::max<int64_t>(1, (call.count + chunk - 1) / chunk);
  const auto* send = static_cast<const std::byte*>(call.send);
  auto* recv = static_cast<std::byte*>(call.recv);
  std::byte* room = group.scratch.get(2 * chunk * item);
  std::byte* partial = room;
  std::byte* incoming = room + chunk * item;
  for (int64_t round = 0; round < rounds; ++round) {
    int64_t begin = std::min(call.count, round * chunk), count = std::min(call.count, begin + chunk) - begin;
    for (int step = 0; step < n - 1; ++step) {
      auto input = [&](int slice) { return send + (slice * call.count + begin) * item; };
      int to_slice = group.left(step + 1), from_slice = group.left((step + 2) % n);
      group.wire.send(group.right(), step == 0 ? input(to_slice) : partial, count * item);
      group.wire.recv(group.left(), incoming, count * item);
      group.wire.flush();
      bool last = step == n - 2;
      const void* inputs[2] = {incoming, input(from_slice)};
      reduce(call.dtype, last ? call.redop : partial_op(call), inputs, 2, last ? recv + begin * item : partial, count,
             n);
    }
  }
}

}  // namespace prun
