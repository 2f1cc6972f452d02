// Gathers and broadcasts over hosts: each block is sent to every host once, then broadcast inside it.
#include <algorithm>
#include <numeric>

#include "comm/collectives/slices.h"
#include "comm/hierarchical/hierarchical_communicator.h"

namespace prun {
namespace {

// Each member's block in the result.
struct Layout {
  std::byte* base;
  int64_t item;
  const int64_t* counts;  // null: all members have `count`
  int64_t count;
  int64_t elements(int member) const { return counts != nullptr ? counts[member] : count; }
  int64_t bytes(int member) const { return elements(member) * item; }
  std::byte* at(int member) const {
    return base + (counts != nullptr ? std::accumulate(counts, counts + member, int64_t{0}) : member * count) * item;
  }
};

// Sends this rank's block to one rank of every other host, and receives the blocks that it forwards on this host.
void exchange(HierarchicalGroup& group, const CollCall& call, const Layout& layout) {
  const int self = group.member(group.map.host, group.map.place);
  for (int d = 1; d < group.host_count(); ++d) {
    const int to = (group.map.host + d) % group.host_count(),
              from = (group.map.host + group.host_count() - d) % group.host_count();
    const auto& sources = group.map.hosts[from];
    const int there = std::ssize(group.map.hosts[to]);
    group.wire.send(group.member(to, group.map.place % there), call.send, layout.bytes(self));
    for (size_t j = group.map.place; j < sources.size(); j += group.here())
      group.wire.recv(sources[j], layout.at(sources[j]), layout.bytes(sources[j]));
  }
}

// Distributes the blocks of host `h` to all ranks of this host.
void hand_round(HierarchicalGroup& group, const CollCall& call, const Layout& layout, int h) {
  const auto& members = group.map.hosts[h];
  CollCall step = call;
  step.counts = nullptr;
  if (group.map.in_order && group.map.even && layout.counts == nullptr) {
    step.kind = CollKind::all_gather;
    step.send = layout.at(group.member(h, group.map.place));
    step.recv = layout.at(members.front());
    group.run_inside(step);
    return;
  }
  step.kind = CollKind::broadcast;
  for (size_t j = 0; j < members.size(); ++j) {
    step.root = static_cast<int>(j) % group.here();
    step.send = step.recv = layout.at(members[j]);
    step.count = layout.elements(members[j]);
    group.run_inside(step);
  }
}

}  // namespace

bool hierarchical_all_gather(HierarchicalGroup& group, const CollCall& call) {
  const Layout layout{static_cast<std::byte*>(call.recv), dtype_bytes(call.dtype), call.counts, call.count};
  const int self = group.member(group.map.host, group.map.place);
  group.start();
  exchange(group, call, layout);
  const int64_t ticket = group.wire.post();
  copy_block(layout.at(self), call.send, layout.bytes(self));
  hand_round(group, call, layout, group.map.host);  // while the other hosts' blocks are in flight
  group.wire.wait(ticket);
  for (int d = 1; d < group.host_count(); ++d)
    hand_round(group, call, layout, (group.map.host + d) % group.host_count());
  return true;
}

// Sends from the root to the leader of each other host: one piece down a tree, several along a chain.
bool hierarchical_broadcast(HierarchicalGroup& group, const CollCall& call) {
  constexpr int64_t kPiece = 512 << 10;
  constexpr int kDepth = 2;
  const int hosts = group.host_count();
  const int64_t bytes = call.count * dtype_bytes(call.dtype), piece = kPiece / 64 * 64;
  const int64_t pieces = (bytes + piece - 1) / piece;
  const auto [root_host, root_place] = group.map.find(call.root);
  const int first = root_host;
  const int turn = (group.map.host - first + hosts) % hosts;  // distance of this host from the root's
  const int leader = turn == 0 ? root_place : 0;              // place of the host leader
  auto leader_of = [&](int t) { return t == 0 ? call.root : group.member((first + t) % hosts, 0); };
  int parent = turn - 1;
  std::vector<int> children;
  if (pieces > 1) {
    if (turn + 1 < hosts) children.push_back(leader_of(turn + 1));
  } else {
    int bit = 1;
    while (bit < hosts && (turn & bit) == 0) bit *= 2;  // the lowest set bit, which is clear in the parent's turn
    parent = turn - bit;
    for (bit /= 2; bit > 0; bit /= 2)
      if (turn + bit < hosts) children.push_back(leader_of(turn + bit));
  }
  const bool leads = group.map.place == leader, at_root = call.root == group.wire.index();
  auto* recv = static_cast<std::byte*>(call.recv);
  const auto* data = at_root ? static_cast<const std::byte*>(call.send) : recv;
  auto size = [&](int64_t i) { return std::min(piece, bytes - i * piece); };
  int64_t came[kDepth] = {-1, -1}, went[kDepth] = {-1, -1};
  auto expect = [&](int64_t i) {
    if (!leads || turn == 0 || i >= pieces) return;
    group.wire.recv(leader_of(parent), recv + i * piece, size(i));
    came[i % kDepth] = group.wire.post();
  };
  group.start();
  expect(0);
  for (int64_t i = 0; i < pieces; ++i) {
    expect(i + 1);
    if (leads) {
      group.wire.wait(came[i % kDepth]);
      group.wire.wait(went[i % kDepth]);
      for (int child : children) group.wire.send(child, data + i * piece, size(i));
      went[i % kDepth] = group.wire.post();
    }
    CollCall step = call;
    step.dtype = Dtype::u8;
    step.root = leader;
    step.send = data + i * piece;
    step.recv = recv + i * piece;
    step.count = size(i);
    group.run_inside(step);
  }
  return true;
}

}  // namespace prun
