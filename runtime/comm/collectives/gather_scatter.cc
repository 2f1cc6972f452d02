// Gather and scatter: the root is at one end of every message, so nothing beats sending each block straight.
#include <cstring>

#include "comm/collectives/algorithm.h"

namespace prun {

void gather_direct(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  if (group.index != call.root) {
    group.wire.send(call.root, call.send, bytes);
    group.wire.flush();
    return;
  }
  auto* recv = static_cast<std::byte*>(call.recv);
  for (int d = 1; d < group.size; ++d) group.wire.recv(group.left(d), recv + group.left(d) * bytes, bytes);
  int64_t ticket = group.wire.post();
  std::byte* own = recv + group.index * bytes;
  if (bytes > 0 && call.send != own) std::memcpy(own, call.send, static_cast<size_t>(bytes));
  group.wire.wait(ticket);
}

void scatter_direct(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  if (group.index != call.root) {
    group.wire.recv(call.root, call.recv, bytes);
    group.wire.flush();
    return;
  }
  const auto* send = static_cast<const std::byte*>(call.send);
  for (int d = 1; d < group.size; ++d) group.wire.send(group.right(d), send + group.right(d) * bytes, bytes);
  int64_t ticket = group.wire.post();
  const std::byte* own = send + group.index * bytes;
  if (bytes > 0 && call.recv != own) std::memcpy(call.recv, own, static_cast<size_t>(bytes));
  group.wire.wait(ticket);
}

}  // namespace prun
