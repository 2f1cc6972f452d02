// Reductions over hosts: summed inside each host, then between hosts, then broadcast inside each host.
//
// Sums in rank order go from host to host, each adding its members' inputs to the received sum: the same additions in
// the same order as on one host, hence bitwise identical. Other sums run the core's algorithms, in one group per local
// rank.
#include <algorithm>
#include <cstring>

#include "comm/collectives/slices.h"
#include "comm/hierarchical/hierarchical_communicator.h"

namespace prun {
namespace {

// From this size, every local rank handles a part between hosts; below it, the host leader handles all.
constexpr int64_t kSplitBytes = 32 << 10;
constexpr int64_t kPieceBytes = 256 << 10;  // bytes of a part that are in flight at once

// Returns whether partial sums lose nothing: 16-bit floats are rounded, averages of integers are truncated.
bool has_partial_sums(const CollCall& call) {
  const bool narrow = call.dtype == Dtype::bf16 || call.dtype == Dtype::f16;
  const bool real = narrow || call.dtype == Dtype::f32 || call.dtype == Dtype::f64;
  const bool compares = call.redop == RedOp::min || call.redop == RedOp::max;
  return compares || (!narrow && (real || call.redop != RedOp::avg));
}

bool runs_in_steps(const HierarchicalGroup& group, const CollCall& call) {
  return has_partial_sums(call) && (!call.rank_order || group.map.in_order);
}

// The last step of an average: divides the sums over all members.
void divide(const HierarchicalGroup& group, const CollCall& call, void* sums, int64_t count) {
  if (call.redop != RedOp::avg || count == 0) return;
  const void* inputs[] = {sums};
  reduce(call.dtype, RedOp::avg, inputs, 1, sums, count, group.size());
}

CollCall step_of(const CollCall& call, CollKind kind, const void* send, void* recv, int64_t count) {
  CollCall step = call;
  step.kind = kind;
  step.send = send;
  step.recv = recv;
  step.count = count;
  step.root = 0;
  step.redop = partial_op(call);
  return step;
}

// Sums in rank order go up the hosts, from each member to the one with its place on the next host.
bool first_host(const HierarchicalGroup& group) { return group.map.host == 0; }
bool last_host(const HierarchicalGroup& group) { return group.map.host == group.host_count() - 1; }
int above(const HierarchicalGroup& group) { return group.member(group.map.host + 1, group.map.place); }
int below(const HierarchicalGroup& group) { return group.member(group.map.host - 1, group.map.place); }

// Adds this host's inputs, concatenated in `room`, to the sum received from the host below.
void add_inputs(HierarchicalGroup& group, const CollCall& call, const std::byte* room, std::byte* incoming, void* sum,
                int64_t count) {
  const int64_t bytes = count * dtype_bytes(call.dtype);
  std::vector<const void*> inputs;
  if (!first_host(group)) {
    group.wire.recv(below(group), incoming, bytes);
    group.wire.flush();
    inputs.push_back(incoming);
  }
  for (int p = 0; p < group.here(); ++p) inputs.push_back(room + p * bytes);
  reduce(call.dtype, last_host(group) ? call.redop : partial_op(call), inputs.data(), inputs.size(), sum, count,
         group.size());
}

// A part of an all-reduce: `count` elements of `send` and `recv`.
struct Part {
  const std::byte* send;
  std::byte* recv;
  int64_t count;
};

// All-reduces between the host leaders, the first members of their hosts.
void all_reduce_by_leader(HierarchicalGroup& group, const CollCall& call, const Part& part) {
  if (part.count == 0) return;
  group.run_inside(step_of(call, CollKind::reduce, part.send, part.recv, part.count));
  if (group.map.place == 0) {
    group.run_across(step_of(call, CollKind::all_reduce, part.recv, part.recv, part.count));
    divide(group, call, part.recv, part.count);
  }
  group.run_inside(step_of(call, CollKind::broadcast, part.recv, part.recv, part.count));
}

// All-reduces between all members, each for its slice of the buffer; `count` must be divisible by the local ranks.
void all_reduce_by_slices(HierarchicalGroup& group, const CollCall& call, const Part& part) {
  const int64_t slice = part.count / group.here();
  if (slice == 0) return;
  std::byte* mine = part.recv + group.map.place * slice * dtype_bytes(call.dtype);
  group.run_inside(step_of(call, CollKind::reduce_scatter, part.send, mine, slice));
  group.run_across(step_of(call, CollKind::all_reduce, mine, mine, slice));
  divide(group, call, mine, slice);
  group.run_inside(step_of(call, CollKind::all_gather, mine, part.recv, slice));
}

// An all-reduce in rank order, piece by piece:
//   up:   each host adds its inputs and sends the sum to the next host
//   down: the last host sends the result back, while the next piece is on its way up
class Chain {
 public:
  // `leaders`: 1, or the members per host; each leader has its slice of every piece.
  Chain(HierarchicalGroup& group, const CollCall& call, int leaders)
      : group_(group),
        call_(call),
        leaders_(leaders),
        item_(dtype_bytes(call.dtype)),
        slice_(kPieceBytes / item_),
        leads_(group.map.place < leaders) {
    if (!leads_) return;
    const int64_t slot = slice_ * item_;
    room_ = group.scratch.get((group.here() + 1 + kDepth) * slot);
    incoming_ = room_ + group.here() * slot;
    sums_ = incoming_ + slot;
  }

  void run(const Part& part) {
    const int64_t piece = slice_ * leaders_, pieces = (part.count + piece - 1) / piece;
    auto at = [&](int64_t i) {
      int64_t begin = i * piece;
      return Part{part.send + begin * item_, part.recv + begin * item_, std::min(piece, part.count - begin)};
    };
    const int64_t ahead = last_host(group_) ? 0 : kDepth - 1;
    for (int64_t i = 0; i < pieces + ahead; ++i) {
      if (i < pieces) up(at(i), i);
      if (i >= ahead) down(at(i - ahead), i - ahead);
    }
    for (int64_t ticket : sent_down_) group_.wire.wait(ticket);
  }

 private:
  static constexpr int kDepth = 2;  // pieces in flight; posts fewer batches than Wire::kInFlight
  int64_t slice_of(const Part& part) const { return part.count / leaders_; }
  std::byte* result_of(const Part& part) const {
    return part.recv + (leaders_ > 1 ? group_.map.place : 0) * slice_of(part) * item_;
  }

  void up(const Part& part, int64_t i) {
    const int64_t count = slice_of(part), bytes = count * item_;
    const CollKind kind = leaders_ > 1 ? CollKind::all_to_all : CollKind::gather;
    group_.run_inside(step_of(call_, kind, part.send, room_, count));
    if (!leads_) return;
    std::byte* sum = last_host(group_) ? result_of(part) : sums_ + i % kDepth * slice_ * item_;
    add_inputs(group_, call_, room_, incoming_, sum, count);
    if (last_host(group_)) return;
    group_.wire.recv(above(group_), result_of(part), bytes);
    group_.wire.send(above(group_), sum, bytes);
    under_way_[i % kDepth] = group_.wire.post();
  }

  void down(const Part& part, int64_t i) {
    const int64_t count = slice_of(part);
    std::byte* result = result_of(part);
    if (leads_) {
      if (!last_host(group_)) group_.wire.wait(under_way_[i % kDepth]);
      if (!first_host(group_)) {
        group_.wire.wait(sent_down_[i % kDepth]);
        group_.wire.send(below(group_), result, count * item_);
        sent_down_[i % kDepth] = group_.wire.post();
      }
    }
    group_.run_inside(leaders_ > 1 ? step_of(call_, CollKind::all_gather, result, part.recv, count)
                                   : step_of(call_, CollKind::broadcast, result, part.recv, count));
  }

  HierarchicalGroup& group_;
  const CollCall& call_;
  const int leaders_;
  const int64_t item_, slice_;
  const bool leads_;
  std::byte *room_ = nullptr, *incoming_ = nullptr, *sums_ = nullptr;
  int64_t under_way_[kDepth] = {-1, -1}, sent_down_[kDepth] = {-1, -1};
};

// The input of a reduce-scatter by host: block h holds the pieces of the members of host h.
struct Blocks {
  int64_t count, bytes, block_bytes;  // of a piece (two fields), and of all pieces of a host
  const std::byte* send;
  const std::byte* at(int h) const { return send + h * block_bytes; }
};

// Sums go up the hosts as in Chain; the last host sends each sum to its owner, over `across`, because the group's wire
// is still sending up.
void reduce_scatter_in_order(HierarchicalGroup& group, const CollCall& call, const Blocks& blocks) {
  constexpr int kDepth = 3;  // sums in flight up the hosts
  const int hosts = group.host_count();
  const bool last = last_host(group);
  std::byte* room = group.scratch.get(blocks.block_bytes + (hosts + 1) * blocks.bytes);
  std::byte* incoming = room + blocks.block_bytes;
  std::byte* sums = incoming + blocks.bytes;  // by block; unchanged until sent
  group.across->begin(group.call, group.sequence, Wire::Ring::none);
  if (!last) group.across->recv(hosts - 1, call.recv, blocks.bytes);
  group.across->post();
  int64_t sent[kDepth] = {-1, -1, -1};
  for (int h = 0; h < hosts; ++h) {
    group.run_inside(step_of(call, CollKind::all_to_all, blocks.at(h), room, blocks.count));
    const bool own = last && h == group.map.host;
    void* sum = own ? call.recv : sums + h * blocks.bytes;
    add_inputs(group, call, room, incoming, sum, blocks.count);
    if (own) continue;
    if (last) {
      group.across->send(h, sum, blocks.bytes);
      group.across->flush();
      continue;
    }
    group.wire.wait(sent[h % kDepth]);
    group.wire.send(above(group), sum, blocks.bytes);
    sent[h % kDepth] = group.wire.post();
  }
  group.across->finish();
}

}  // namespace

bool hierarchical_all_reduce(HierarchicalGroup& group, const CollCall& call) {
  if (!runs_in_steps(group, call)) return false;
  const int64_t item = dtype_bytes(call.dtype);
  const Part whole{static_cast<const std::byte*>(call.send), static_cast<std::byte*>(call.recv), call.count};
  // The remainder that does not divide among the local ranks in cache lines goes over the host leaders.
  const bool split = group.map.even && call.count * item >= kSplitBytes;
  const int64_t body = split ? call.count / (64 * group.here()) * 64 * group.here() : 0;
  const Part head{whole.send, whole.recv, body};
  const Part tail{whole.send + body * item, whole.recv + body * item, call.count - body};
  group.start();
  if (call.rank_order) {
    if (body > 0) Chain(group, call, group.here()).run(head);
    Chain(group, call, 1).run(tail);
  } else {
    all_reduce_by_slices(group, call, head);
    all_reduce_by_leader(group, call, tail);
  }
  return true;
}

bool hierarchical_reduce_scatter(HierarchicalGroup& group, const CollCall& call) {
  if (!runs_in_steps(group, call) || !group.map.in_order || !group.map.even) return false;
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  const Blocks blocks{call.count, bytes, group.here() * bytes, static_cast<const std::byte*>(call.send)};
  group.start();
  if (call.count == 0) return true;
  if (call.rank_order) {
    reduce_scatter_in_order(group, call, blocks);
    return true;
  }
  // run_across uses the group's scratch, so the sums need other memory.
  std::byte* sums = group.sums.get(group.host_count() * bytes);
  for (int h = 0; h < group.host_count(); ++h)
    group.run_inside(step_of(call, CollKind::reduce_scatter, blocks.at(h), sums + h * bytes, call.count));
  group.run_across(step_of(call, CollKind::reduce_scatter, sums, call.recv, call.count));
  divide(group, call, call.recv, call.count);
  return true;
}

bool hierarchical_reduce(HierarchicalGroup& group, const CollCall& call) {
  if (!runs_in_steps(group, call) || call.rank_order) return false;
  const int64_t item = dtype_bytes(call.dtype), chunk = (4 * kPieceBytes) / item;
  const auto* send = static_cast<const std::byte*>(call.send);
  const bool at_root = call.root == group.wire.index();
  // The leader of each host sums its host's inputs; on the root's host the root does. The root then sums the results of
  // the hosts.
  const int root_host = group.map.find(call.root).first;
  const int leader = root_host == group.map.host ? group.map.find(call.root).second : 0;
  const bool leads = group.map.place == leader;
  std::byte* room = leads ? group.scratch.get(group.host_count() * chunk * item) : nullptr;
  group.start();
  for (int64_t begin = 0; begin < call.count; begin += chunk) {
    const int64_t count = std::min(chunk, call.count - begin), bytes = count * item;
    CollCall step = step_of(call, CollKind::reduce, send + begin * item, room, count);
    step.root = leader;
    group.run_inside(step);
    if (!leads) continue;
    if (!at_root) {
      group.wire.send(call.root, room, bytes);
      group.wire.flush();
      continue;
    }
    std::vector<const void*> inputs = {room};
    for (int h = 0; h < group.host_count(); ++h) {
      if (h == root_host) continue;
      std::byte* slot = room + static_cast<int64_t>(inputs.size()) * chunk * item;
      group.wire.recv(group.member(h, 0), slot, bytes);
      inputs.push_back(slot);
    }
    group.wire.flush();
    reduce(call.dtype, call.redop, inputs.data(), inputs.size(), static_cast<std::byte*>(call.recv) + begin * item,
           count, group.size());
  }
  return true;
}

}  // namespace prun
