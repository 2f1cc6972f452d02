// Blocks brought to every host once, then handed round inside it.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/collectives/slices.h"
#include "comm/hierarchical/hierarchical_communicator.h"

namespace prun {
namespace {

// Where each member's block lies in the result.
struct Layout {
  std::byte* base;
  int64_t item;
  const int64_t* counts;  // null: all `count`
  int64_t count;
  int64_t elements(int member) const { return counts != nullptr ? counts[member] : count; }
  int64_t bytes(int member) const { return elements(member) * item; }
  std::byte* at(int member) const {
    return base + (counts != nullptr ? std::accumulate(counts, counts + member, int64_t{0}) : member * count) * item;
  }
};

// A block of another host comes to the local rank whose turn it is; each sends its own to one rank of every other host.
void exchange(Span& span, const CollCall& call, const Layout& layout) {
  const int self = span.member(span.host, span.place);
  for (int d = 1; d < span.host_count(); ++d) {
    const int to = (span.host + d) % span.host_count(), from = (span.host + span.host_count() - d) % span.host_count();
    const auto& sources = span.hosts[from];
    const int there = std::ssize(span.hosts[to]);
    span.wire.send(span.member(to, span.place % there), call.send, layout.bytes(self));
    for (size_t j = static_cast<size_t>(span.place); j < sources.size(); j += static_cast<size_t>(span.here()))
      span.wire.recv(sources[j], layout.at(sources[j]), layout.bytes(sources[j]));
  }
}

// What has come of host `h`, to all on this one.
void hand_round(Span& span, const CollCall& call, const Layout& layout, int h) {
  const auto& members = span.hosts[h];
  CollCall step = call;
  step.counts = nullptr;
  if (span.in_order && span.even && layout.counts == nullptr) {
    step.kind = CollKind::all_gather;
    step.send = layout.at(span.member(h, span.place));
    step.recv = layout.at(members.front());
    span.run_inside(step);
    return;
  }
  step.kind = CollKind::broadcast;
  for (size_t j = 0; j < members.size(); ++j) {
    step.root = static_cast<int>(j) % span.here();
    step.send = step.recv = layout.at(members[j]);
    step.count = layout.elements(members[j]);
    span.run_inside(step);
  }
}

}  // namespace

bool spanning_all_gather(Span& span, const CollCall& call) {
  const Layout layout{static_cast<std::byte*>(call.recv), dtype_bytes(call.dtype), call.counts, call.count};
  const int self = span.member(span.host, span.place);
  span.start();
  exchange(span, call, layout);
  const int64_t ticket = span.wire.post();
  if (call.send != layout.at(self) && layout.bytes(self) > 0)
    std::memcpy(layout.at(self), call.send, static_cast<size_t>(layout.bytes(self)));
  hand_round(span, call, layout, span.host);  // while the others' blocks are on their way
  span.wire.wait(ticket);
  for (int d = 1; d < span.host_count(); ++d) hand_round(span, call, layout, (span.host + d) % span.host_count());
  return true;
}

// From the root to one rank of each other host: down a tree when it is one piece, host by host when it is many.
bool spanning_broadcast(Span& span, const CollCall& call) {
  constexpr int64_t kPiece = 512 << 10;
  constexpr int kDepth = 2;
  const int hosts = span.host_count();
  const int64_t bytes = call.count * dtype_bytes(call.dtype), piece = kPiece / 64 * 64;
  const int64_t pieces = (bytes + piece - 1) / piece;
  int root_host = 0, root_place = 0;
  for (int h = 0; h < hosts; ++h) {
    for (int p = 0; p < std::ssize(span.hosts[h]); ++p)
      if (span.member(h, p) == call.root) root_host = h, root_place = p;
  }
  const int turn = (span.host - root_host + hosts) % hosts;  // of this host
  const int gate = turn == 0 ? root_place : 0;
  auto gate_of = [&](int t) { return t == 0 ? call.root : span.member((root_host + t) % hosts, 0); };
  int parent = turn - 1;
  std::vector<int> children;
  if (pieces > 1) {
    if (turn + 1 < hosts) children.push_back(gate_of(turn + 1));
  } else {
    int bit = 1;
    while (bit < hosts && (turn & bit) == 0) bit *= 2;  // the lowest set bit: the parent is without it
    parent = turn - bit;
    for (bit /= 2; bit > 0; bit /= 2)
      if (turn + bit < hosts) children.push_back(gate_of(turn + bit));
  }
  const bool speaks = span.place == gate, at_root = call.root == span.wire.index();
  auto* recv = static_cast<std::byte*>(call.recv);
  const auto* data = at_root ? static_cast<const std::byte*>(call.send) : recv;
  auto size = [&](int64_t i) { return std::min(piece, bytes - i * piece); };
  int64_t came[kDepth] = {-1, -1}, went[kDepth] = {-1, -1};
  auto expect = [&](int64_t i) {
    if (!speaks || turn == 0 || i >= pieces) return;
    span.wire.recv(gate_of(parent), recv + i * piece, size(i));
    came[i % kDepth] = span.wire.post();
  };
  span.start();
  expect(0);
  for (int64_t i = 0; i < pieces; ++i) {
    expect(i + 1);
    if (speaks) {
      span.wire.wait(came[i % kDepth]);
      span.wire.wait(went[i % kDepth]);
      for (int child : children) span.wire.send(child, data + i * piece, size(i));
      went[i % kDepth] = span.wire.post();
    }
    CollCall step = call;
    step.dtype = Dtype::u8;
    step.root = gate;
    step.send = data + i * piece;
    step.recv = recv + i * piece;
    step.count = size(i);
    span.run_inside(step);
  }
  return true;
}

}  // namespace prun
