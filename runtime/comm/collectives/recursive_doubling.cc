// Recursive doubling and halving: sums in pairs at doubling distances. They need the fewest messages, which counts for
// buffers whose time is that of messages and wake-ups.
//
// Every sum is formed along one tree, so all members get the same bits, every time; but not those of the rank order.
// Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, also for numbers of members that are no power of two.
#include <bit>
#include <cstring>

#include "comm/collectives/slices.h"

namespace prun {
namespace {

// As many members form pairs as the largest power of two. Each of the others has a neighbour stand in for it: among the
// first 2 * extra members an even one hands its input to the odd one after it and gets the result from there.
class Pairs {
 public:
  explicit Pairs(const Group& group)
      : places_(static_cast<int>(std::bit_floor(static_cast<unsigned>(group.size)))),
        extra_(group.size - places_),
        index_(group.index) {}
  int places() const { return places_; }
  bool folded() const { return index_ < 2 * extra_; }
  bool stands_aside() const { return folded() && index_ % 2 == 0; }
  int place() const { return folded() ? index_ / 2 : index_ - extra_; }
  int member(int place) const { return place < extra_ ? 2 * place + 1 : place + extra_; }

 private:
  int places_, extra_, index_;
};

// Adds `mine` and `theirs`, each a sum over one half of the tree, in the order of the places.
struct Summer {
  const CollCall& call;
  int divisor;
  void operator()(const void* mine, const void* theirs, bool mine_first, bool last, void* out, int64_t count) const {
    const void* inputs[2] = {mine_first ? mine : theirs, mine_first ? theirs : mine};
    if (count > 0) reduce(call.dtype, last ? call.redop : partial_op(call), inputs, 2, out, count, divisor);
  }
};

// Runs `inner(source, sum)` on the members that form pairs; afterwards all have the result in call.recv.
template <typename Inner>
void folded(Group& group, const CollCall& call, Inner inner) {
  const Pairs pairs(group);
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  if (pairs.stands_aside()) {
    group.wire.send(group.right(), call.send, bytes);
    group.wire.flush();
    group.wire.recv(group.right(), call.recv, bytes);
    group.wire.flush();
    return;
  }
  const Summer sum{call, group.size};
  const void* source = call.send;
  if (pairs.folded()) {
    std::byte* room = group.scratch.get(bytes);
    group.wire.recv(group.left(), room, bytes);
    group.wire.flush();
    sum(call.send, room, false, pairs.places() == 1, call.recv, call.count);
    source = call.recv;
  }
  inner(pairs, sum, static_cast<const std::byte*>(source));
  if (pairs.folded()) {
    group.wire.send(group.left(), call.recv, bytes);
    group.wire.flush();
  }
}

}  // namespace

// Everything to the partner and back, log2 n times: small.
void all_reduce_doubling(Group& group, const CollCall& call) {
  folded(group, call, [&](const Pairs& pairs, const Summer& sum, const std::byte* source) {
    const int64_t bytes = call.count * dtype_bytes(call.dtype);
    std::byte* room = group.scratch.get(bytes);
    for (int distance = 1; distance < pairs.places(); distance *= 2) {
      int partner = pairs.member(pairs.place() ^ distance);
      group.wire.send(partner, source, bytes);
      group.wire.recv(partner, room, bytes);
      group.wire.flush();
      bool last = 2 * distance == pairs.places();
      sum(source, room, (pairs.place() & distance) == 0, last, call.recv, call.count);
      source = static_cast<const std::byte*>(call.recv);
    }
  });
}

// Half of what is left to the partner, until each has summed one slice; then the same way back.
void all_reduce_halving(Group& group, const CollCall& call) {
  folded(group, call, [&](const Pairs& pairs, const Summer& sum, const std::byte* source) {
    const int places = pairs.places(), place = pairs.place();
    const int64_t item = dtype_bytes(call.dtype);
    const Slices slices = Slices::divide(call.count, places, item);
    auto* recv = static_cast<std::byte*>(call.recv);
    auto at = [&](int slice) { return slices.begin(slice) * item; };
    auto length = [&](int from, int to) { return slices.end(to - 1) - slices.begin(from); };
    std::byte* room = group.scratch.get((slices.length() * places / 2) * item);
    // Each member keeps the `distance` slices around its own; `place` without its low bits is the first of them.
    for (int distance = places / 2; distance > 0; distance /= 2) {
      int partner = place ^ distance, mine = place & -distance, theirs = partner & -distance;
      group.wire.send(pairs.member(partner), source + at(theirs), length(theirs, theirs + distance) * item);
      group.wire.recv(pairs.member(partner), room, length(mine, mine + distance) * item);
      group.wire.flush();
      sum(source + at(mine), room, place < partner, distance == 1, recv + at(mine), length(mine, mine + distance));
      source = recv;
    }
    for (int distance = 1; distance < places; distance *= 2) {
      int partner = place ^ distance, mine = place & -distance, theirs = partner & -distance;
      group.wire.send(pairs.member(partner), recv + at(mine), length(mine, mine + distance) * item);
      group.wire.recv(pairs.member(partner), recv + at(theirs), length(theirs, theirs + distance) * item);
      group.wire.flush();
    }
  });
}

// The first half of all_reduce_halving. Partial sums stay in scratch, because the input must stay as it is.
void reduce_scatter_halving(Group& group, const CollCall& call) {
  const int n = group.size;
  const int64_t piece = call.count * dtype_bytes(call.dtype), half = n / 2 * piece;
  std::byte* room = group.scratch.get(2 * half);
  std::byte* partial = room + half;
  const Summer sum{call, n};
  const auto* source = static_cast<const std::byte*>(call.send);
  int first = 0;  // the slice that `source` begins with
  for (int distance = n / 2; distance > 0; distance /= 2) {
    int partner = group.index ^ distance, mine = group.index & -distance, theirs = partner & -distance;
    group.wire.send(partner, source + (theirs - first) * piece, distance * piece);
    group.wire.recv(partner, room, distance * piece);
    group.wire.flush();
    bool last = distance == 1;
    sum(source + (mine - first) * piece, room, group.index < partner, last, last ? call.recv : partial,
        distance * call.count);
    source = partial;
    first = mine;
  }
}

}  // namespace prun
