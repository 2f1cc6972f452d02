// Recursive doubling and halving: sums in pairs at doubling distances. They need the fewest messages, which matters for
// buffers dominated by messages and wake-ups; and each member has one partner at a time, which matters for large
// buffers when many ranks share a core.
//
// Every sum follows one tree, so results are bitwise identical on all members and runs, but not in rank order.
// Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, also for member counts that are not a power of two.
#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/collectives/slices.h"

namespace prun {
namespace {

// P members form pairs, where P is the largest power of two up to the group size. Each remaining member has a proxy:
// among the first 2 * extra members an even one sends its input to the odd one after it, which returns the result.
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
  int64_t item() const { return dtype_bytes(call.dtype); }
  void operator()(const void* mine, const void* theirs, bool mine_first, bool last, void* out, int64_t count) const {
    const void* inputs[2] = {mine_first ? mine : theirs, mine_first ? theirs : mine};
    if (count > 0) reduce(call.dtype, last ? call.redop : partial_op(call), inputs, 2, out, count, divisor);
  }
};

// Sends `out` elements to the partner and adds the received ones to `count` of this member's own, in chunks that are
// still in the cache when they are summed. One partner at a time keeps little of the group's data in the kernel's
// buffers.
struct Halves {
  Group& group;
  const Summer& sum;
  std::byte* room;  // room_bytes long
  static int64_t chunk(int64_t item) { return chunk_elements(item, 4); }
  static int64_t room_bytes(const Group& group, int64_t item) { return group.wire.ahead() * chunk(item) * item; }

  void operator()(int partner, const std::byte* out, int64_t out_count, const std::byte* mine, std::byte* to,
                  int64_t count, bool mine_first, bool last) const {
    const int64_t item = sum.item(), chunk = Halves::chunk(item);
    const int depth = group.wire.ahead();
    const int64_t rounds = std::max<int64_t>(1, (std::max(count, out_count) + chunk - 1) / chunk);
    auto part = [&](int64_t whole, int64_t round) { return std::clamp<int64_t>(whole - round * chunk, 0, chunk); };
    auto post = [&](int64_t round) {
      group.wire.send(partner, out + std::min(out_count, round * chunk) * item, part(out_count, round) * item);
      group.wire.recv(partner, room + round % depth * chunk * item, part(count, round) * item);
      return group.wire.post();
    };
    int64_t tickets[Wire::kFarAhead] = {};
    int64_t posted = 0;
    for (int64_t round = 0; round < rounds; ++round) {
      for (; posted < std::min(round + depth, rounds); ++posted) tickets[posted % depth] = post(posted);
      group.wire.wait(tickets[round % depth]);
      const int64_t at = std::min(count, round * chunk) * item;
      sum(mine + at, room + round % depth * chunk * item, mine_first, last, to + at, part(count, round));
    }
  }
};

// Runs `inner(source, sum)` on the members that form pairs; afterwards all members have the result in call.recv.
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

// Exchanges the whole buffer with a partner, log2 n times: small.
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

// Halves the buffer with each partner until each member has summed one slice, then all-gathers the slices.
void all_reduce_halving(Group& group, const CollCall& call) {
  folded(group, call, [&](const Pairs& pairs, const Summer& sum, const std::byte* source) {
    const int places = pairs.places(), place = pairs.place();
    const int64_t item = dtype_bytes(call.dtype);
    const Slices slices = Slices::divide(call.count, places, item);
    auto* recv = static_cast<std::byte*>(call.recv);
    auto at = [&](int slice) { return slices.begin(slice) * item; };
    auto length = [&](int from, int to) { return slices.end(to - 1) - slices.begin(from); };
    const Halves halves{group, sum, group.scratch.get(Halves::room_bytes(group, item))};
    // Each member keeps the `distance` slices around its own; `place` without its low bits is the first of them.
    for (int distance = places / 2; distance > 0; distance /= 2) {
      int partner = place ^ distance, mine = place & -distance, theirs = partner & -distance;
      halves(pairs.member(partner), source + at(theirs), length(theirs, theirs + distance), source + at(mine),
             recv + at(mine), length(mine, mine + distance), place < partner, distance == 1);
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

// The first half of all_reduce_halving. Partial sums are kept in scratch, because the input must not change.
void reduce_scatter_halving(Group& group, const CollCall& call) {
  const int n = group.size;
  const int64_t item = dtype_bytes(call.dtype), piece = call.count * item, half = round_up(n / 2 * piece, 64);
  std::byte* partial = group.scratch.get(half + Halves::room_bytes(group, item));
  const Summer sum{call, n};
  const Halves halves{group, sum, partial + half};
  const auto* source = static_cast<const std::byte*>(call.send);
  int first = 0;  // the first slice in `source`
  for (int distance = n / 2; distance > 0; distance /= 2) {
    int partner = group.index ^ distance, mine = group.index & -distance, theirs = partner & -distance;
    const bool last = distance == 1;
    halves(partner, source + (theirs - first) * piece, distance * call.count, source + (mine - first) * piece,
           last ? static_cast<std::byte*>(call.recv) : partial, distance * call.count, group.index < partner, last);
    source = partial;
    first = mine;
  }
}

}  // namespace prun
