// Copies every input first: slow, but correct by inspection.
#include "exec/plain_collectives.h"

#include <cstring>

#include "base/error.h"
#include "comm/reduce.h"

namespace prun {

void run_plain_collective(CollKind kind, Dtype dtype, RedOp op, int root, const std::vector<PlainMember>& members) {
  const int n = std::ssize(members);
  const int64_t item = dtype_bytes(dtype);
  std::vector<std::vector<std::byte>> inputs;
  std::vector<int64_t> shares;
  for (const PlainMember& member : members) {
    const std::byte* in = static_cast<const std::byte*>(member.in);
    inputs.emplace_back(in, in + member.in_count * item);
    shares.push_back(member.share != nullptr ? *member.share : member.in_count);
  }
  // Copies elements [first, first + count) of a member's input to element `at` of the output.
  const auto copy = [&](const PlainMember& me, int64_t at, int from, int64_t first, int64_t count) {
    const std::byte* source = inputs[from].data() + first * item;
    if (count > 0) std::memcpy(static_cast<std::byte*>(me.out) + at * item, source, count * item);
  };
  const auto reduced = [&](const PlainMember& me, int64_t first) {
    std::vector<const void*> sources;
    for (const std::vector<std::byte>& input : inputs) sources.push_back(input.data() + first * item);
    reduce(dtype, op, sources.data(), n, me.out, me.out_count, n);
  };
  for (int rank = 0; rank < n; rank++) {
    const PlainMember& me = members[rank];
    switch (kind) {
      case CollKind::barrier:
        break;
      case CollKind::reduce:
        if (rank == root) reduced(me, 0);
        break;
      case CollKind::all_reduce:
        reduced(me, 0);
        break;
      case CollKind::reduce_scatter:
        reduced(me, rank * me.out_count);
        break;
      case CollKind::broadcast:
        copy(me, 0, root, 0, me.out_count);
        break;
      case CollKind::scatter:
        copy(me, 0, root, rank * me.out_count, me.out_count);
        break;
      case CollKind::gather:
      case CollKind::all_gather:
      case CollKind::all_gather_v:
        if (kind == CollKind::gather && rank != root) break;
        for (int64_t other = 0, at = 0; other < n; at += shares[other++]) {
          copy(me, at, other, 0, shares[other]);
          if (me.shares != nullptr) me.shares[other] = shares[other];
        }
        break;
      case CollKind::all_to_all:
        for (int other = 0; other < n; other++)
          copy(me, other * (me.in_count / n), other, rank * (me.in_count / n), me.in_count / n);
        break;
      case CollKind::all_to_all_v:
        PRUN_CHECK(false, "all_to_all_v has no plain form");
    }
  }
}

}  // namespace prun
