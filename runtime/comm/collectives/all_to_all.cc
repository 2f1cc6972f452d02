// All-to-all: every piece straight to its owner, a window of peers at a time, each member starting with the next one
// so that no rank is everybody's first.
#include <cstring>
#include <numeric>

#include "comm/collectives/algorithm.h"

namespace prun {
namespace {

// piece(member) and place(member): address and bytes of what goes to and comes from a member.
template <typename Piece, typename Place>
void exchange(Group& group, Piece piece, Place place) {
  for (int d = 1; d < group.size; ++d) {
    auto [into, in_bytes] = place(group.left(d));
    auto [from, out_bytes] = piece(group.right(d));
    group.wire.recv(group.left(d), into, in_bytes);
    group.wire.send(group.right(d), from, out_bytes);
    if (d % kPeersPerBatch == 0) group.wire.flush();
  }
  int64_t ticket = group.wire.post();
  auto [own_from, own_bytes] = piece(group.index);
  auto [own_into, own_room] = place(group.index);
  PRUN_CHECK(own_bytes == own_room, "a rank's own piece has two sizes");
  if (own_bytes > 0 && own_from != own_into) std::memcpy(own_into, own_from, static_cast<size_t>(own_bytes));
  group.wire.wait(ticket);
}

struct Piece {
  const std::byte* data;
  int64_t bytes;
};
struct Place {
  std::byte* data;
  int64_t bytes;
};

}  // namespace

void all_to_all_direct(Group& group, const CollCall& call) {
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  exchange(
      group,
      [&](int m) {
        return Piece{static_cast<const std::byte*>(call.send) + m * bytes, bytes};
      },
      [&](int m) {
        return Place{static_cast<std::byte*>(call.recv) + m * bytes, bytes};
      });
}

void all_to_all_v_direct(Group& group, const CollCall& call) {
  const int64_t item = dtype_bytes(call.dtype);
  auto before = [&](const int64_t* counts, int m) { return std::accumulate(counts, counts + m, int64_t{0}) * item; };
  exchange(
      group,
      [&](int m) {
        return Piece{static_cast<const std::byte*>(call.send) + before(call.counts, m), call.counts[m] * item};
      },
      [&](int m) {
        return Place{static_cast<std::byte*>(call.recv) + before(call.recv_counts, m), call.recv_counts[m] * item};
      });
}

}  // namespace prun
