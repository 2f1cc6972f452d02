// Broadcast: a binomial tree for small buffers, a pipelined chain for large ones, in which each rank sends the data
// once.
#include "comm/collectives/slices.h"

namespace prun {

void broadcast_tree(Group& group, const CollCall& call) {
  const int n = group.size, place = (group.index - call.root + n) % n;  // the root is at place 0
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  auto member = [&](int p) { return (p + call.root) % n; };
  const void* data = place == 0 ? call.send : call.recv;
  int bit = 1;
  while (bit < n && (place & bit) == 0) bit *= 2;  // the lowest set bit, which is clear in the parent's place
  group.wire.compare_later(place % 2 == 1, place % 2 == 0 && place + 1 < n, bytes);
  if (place != 0) {
    group.wire.recv(member(place - bit), call.recv, bytes);
    group.wire.flush();
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (place + bit < n) group.wire.send(member(place + bit), data, bytes);
  }
  int64_t ticket = group.wire.post();
  if (place == 0) copy_block(call.recv, call.send, bytes);
  group.wire.wait(ticket);
}

void broadcast_chain(Group& group, const CollCall& call) {
  const int depth = std::max(4, group.wire.ahead());  // chunks in flight in each direction
  const int n = group.size, place = (group.index - call.root + n) % n;
  const int64_t item = dtype_bytes(call.dtype);
  // With two members nothing is forwarded, so one message suffices.
  const int64_t chunk = n == 2 ? std::max<int64_t>(1, call.count) : chunk_elements(item, 4);
  const int64_t rounds = (call.count + chunk - 1) / chunk;
  const auto* source = static_cast<const std::byte*>(place == 0 ? call.send : call.recv);
  auto bytes = [&](int64_t round) { return (std::min(call.count, (round + 1) * chunk) - round * chunk) * item; };
  int64_t in[Wire::kFarAhead] = {}, out[Wire::kFarAhead] = {};
  auto receive = [&](int64_t round) {
    group.wire.recv(group.left(), static_cast<std::byte*>(call.recv) + round * chunk * item, bytes(round));
    in[round % depth] = group.wire.post();
  };
  group.wire.compare_later(place > 0 && rounds > 0, place < n - 1 && rounds > 0, rounds > 0 ? bytes(0) : 0);
  for (int64_t round = 0; place > 0 && round < std::min<int64_t>(depth, rounds); ++round) receive(round);
  for (int64_t round = 0; round < rounds; ++round) {
    if (place > 0) {
      group.wire.wait(in[round % depth]);
      if (round + depth < rounds) receive(round + depth);
    }
    if (place == n - 1) continue;
    if (round >= depth) group.wire.wait(out[round % depth]);
    group.wire.send(group.right(), source + round * chunk * item, bytes(round));
    out[round % depth] = group.wire.post();
  }
  if (place == 0) copy_block(call.recv, call.send, call.count * item);
}

}  // namespace prun
