// All-to-all and reduce-scatter by Bruck et al. 1997: ceil(log2 n) messages per rank instead of n - 1, each with half
// of the buffer. It suits buffers whose time is dominated by messages and wake-ups.
//
// A block for the member at distance d moves by the bits of d: it is in the message to right(k) if d has bit k.
#include "comm/collectives/slices.h"

namespace prun {
namespace {

// Sends blocks[d] to member right(d), replacing it by member left(d)'s. `room` holds as many blocks again.
void exchange_blocks(Group& group, std::byte* blocks, std::byte* room, int64_t bytes) {
  const int n = group.size;
  std::byte* const incoming = room + n / 2 * bytes;
  for (int bit = 1; bit < n; bit *= 2) {
    int64_t packed = 0;
    for (int d = bit; d < n; ++d)
      if ((d & bit) != 0) copy_block(room + packed++ * bytes, blocks + d * bytes, bytes);
    group.wire.send(group.right(bit), room, packed * bytes);
    group.wire.recv(group.left(bit), incoming, packed * bytes);
    group.wire.flush();
    int64_t taken = 0;
    for (int d = bit; d < n; ++d)
      if ((d & bit) != 0) copy_block(blocks + d * bytes, incoming + taken++ * bytes, bytes);
  }
}

// Exchanges the pieces of call.send in the order of their distance; piece d of the result is member left(d)'s.
std::byte* exchanged_pieces(Group& group, const CollCall& call, int64_t extra) {
  const int n = group.size;
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  const auto* send = static_cast<const std::byte*>(call.send);
  std::byte* const blocks = group.scratch.get(extra + 2 * n * bytes) + extra;
  for (int d = 0; d < n; ++d) copy_block(blocks + d * bytes, send + group.right(d) * bytes, bytes);
  exchange_blocks(group, blocks, blocks + n * bytes, bytes);
  return blocks;
}

}  // namespace

void all_to_all_bruck(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  const std::byte* const blocks = exchanged_pieces(group, call, 0);
  auto* recv = static_cast<std::byte*>(call.recv);
  for (int d = 0; d < group.size; ++d) copy_block(recv + group.left(d) * bytes, blocks + d * bytes, bytes);
}

// Sums in member order, so the result is bitwise identical to reduce_scatter_direct's.
void reduce_scatter_bruck(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  const int64_t pointers = round_up(group.size * static_cast<int64_t>(sizeof(void*)), 64);
  std::byte* const blocks = exchanged_pieces(group, call, pointers);
  auto** inputs = reinterpret_cast<const void**>(blocks - pointers);
  for (int d = 0; d < group.size; ++d) inputs[group.left(d)] = blocks + d * bytes;
  if (call.count > 0) reduce(call.dtype, call.redop, inputs, group.size, call.recv, call.count, group.size);
}

}  // namespace prun
