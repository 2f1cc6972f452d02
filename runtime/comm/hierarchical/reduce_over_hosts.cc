// Reductions over hosts: summed inside each host, then between hosts, then handed round inside again.
//
// Sums in rank order go from host to host, each adding its members' inputs to what came: the same additions in the same
// order as on one host, hence the same bits. The others meet in the core's algorithms, one group for each local rank.
#include <algorithm>
#include <cstring>

#include "comm/collectives/slices.h"
#include "comm/hierarchical/hierarchical_communicator.h"

namespace prun {
namespace {

// From here on every local rank has a part of its own between hosts; below, one speaks for its host.
constexpr int64_t kSplitBytes = 32 << 10;
constexpr int64_t kPieceBytes = 256 << 10;  // of a part that travels at once

// Partial sums would be rounded (16-bit floats) or cut off (averages of integers).
bool has_partial_sums(const CollCall& call) {
  const bool narrow = call.dtype == Dtype::bf16 || call.dtype == Dtype::f16;
  const bool real = narrow || call.dtype == Dtype::f32 || call.dtype == Dtype::f64;
  const bool compares = call.redop == RedOp::min || call.redop == RedOp::max;
  return compares || (!narrow && (real || call.redop != RedOp::avg));
}

bool runs_in_steps(const Span& span, const CollCall& call) {
  return has_partial_sums(call) && (!call.rank_order || span.in_order);
}

RedOp partial_op(const CollCall& call) { return call.redop == RedOp::avg ? RedOp::sum : call.redop; }

// The last step of an average: of sums over all members.
void divide(const Span& span, const CollCall& call, void* sums, int64_t count) {
  if (call.redop != RedOp::avg || count == 0) return;
  const void* inputs[] = {sums};
  reduce(call.dtype, RedOp::avg, inputs, 1, sums, count, span.size());
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

// Part of an all-reduce: `send` and `recv` of `count` elements.
struct Part {
  const std::byte* send;
  std::byte* recv;
  int64_t count;
};

// The first of each host speaks for it.
void all_reduce_by_first(Span& span, const CollCall& call, const Part& part) {
  if (part.count == 0) return;
  span.run_inside(step_of(call, CollKind::reduce, part.send, part.recv, part.count));
  if (span.place == 0) {
    span.run_across(step_of(call, CollKind::all_reduce, part.recv, part.recv, part.count));
    divide(span, call, part.recv, part.count);
  }
  span.run_inside(step_of(call, CollKind::broadcast, part.recv, part.recv, part.count));
}

// Every local rank speaks for a slice; `count` divides by them.
void all_reduce_by_all(Span& span, const CollCall& call, const Part& part) {
  const int64_t slice = part.count / span.here();
  if (slice == 0) return;
  std::byte* mine = part.recv + span.place * slice * dtype_bytes(call.dtype);
  span.run_inside(step_of(call, CollKind::reduce_scatter, part.send, mine, slice));
  span.run_across(step_of(call, CollKind::all_reduce, mine, mine, slice));
  divide(span, call, mine, slice);
  span.run_inside(step_of(call, CollKind::all_gather, mine, part.recv, slice));
}

// An all-reduce in rank order, piece by piece. The sums go up the hosts and the results down again, while the next
// piece is on its way up.
class Chain {
 public:
  // `speakers`: 1, or as many as each host has members; each has its slice of every piece.
  Chain(Span& span, const CollCall& call, int speakers)
      : span_(span),
        call_(call),
        speakers_(speakers),
        item_(dtype_bytes(call.dtype)),
        slice_(kPieceBytes / item_),
        speaks_(span.place < speakers) {
    if (!speaks_) return;
    const int64_t slot = slice_ * item_;
    room_ = span.scratch.get((span.here() + 1 + kDepth) * slot);
    incoming_ = room_ + span.here() * slot;
    sums_ = incoming_ + slot;
  }

  void run(const Part& part) {
    const int64_t piece = slice_ * speakers_, pieces = (part.count + piece - 1) / piece;
    auto at = [&](int64_t i) {
      int64_t begin = i * piece;
      return Part{part.send + begin * item_, part.recv + begin * item_, std::min(piece, part.count - begin)};
    };
    const int64_t ahead = last() ? 0 : kDepth - 1;
    for (int64_t i = 0; i < pieces + ahead; ++i) {
      if (i < pieces) up(at(i), i);
      if (i >= ahead) down(at(i - ahead), i - ahead);
    }
    for (int64_t ticket : sent_down_) span_.wire.wait(ticket);
  }

 private:
  static constexpr int kDepth = 2;  // pieces under way; Wire::kInFlight is above what that posts
  bool first() const { return span_.host == 0; }
  bool last() const { return span_.host == span_.host_count() - 1; }
  int above() const { return span_.member(span_.host + 1, span_.place); }
  int below() const { return span_.member(span_.host - 1, span_.place); }
  int64_t slice_of(const Part& part) const { return part.count / speakers_; }
  std::byte* result_of(const Part& part) const {
    return part.recv + (speakers_ > 1 ? span_.place : 0) * slice_of(part) * item_;
  }

  void up(const Part& part, int64_t i) {
    const int64_t count = slice_of(part), bytes = count * item_;
    const CollKind kind = speakers_ > 1 ? CollKind::all_to_all : CollKind::gather;
    span_.run_inside(step_of(call_, kind, part.send, room_, count));
    if (!speaks_) return;
    std::vector<const void*> inputs;
    if (!first()) {
      span_.wire.recv(below(), incoming_, bytes);
      span_.wire.flush();
      inputs.push_back(incoming_);
    }
    for (int p = 0; p < span_.here(); ++p) inputs.push_back(room_ + p * bytes);
    std::byte* sum = last() ? result_of(part) : sums_ + i % kDepth * slice_ * item_;
    reduce(call_.dtype, last() ? call_.redop : partial_op(call_), inputs.data(), static_cast<int>(inputs.size()), sum,
           count, span_.size());
    if (last()) return;
    span_.wire.recv(above(), result_of(part), bytes);
    span_.wire.send(above(), sum, bytes);
    under_way_[i % kDepth] = span_.wire.post();
  }

  void down(const Part& part, int64_t i) {
    const int64_t count = slice_of(part);
    std::byte* result = result_of(part);
    if (speaks_) {
      if (!last()) span_.wire.wait(under_way_[i % kDepth]);
      if (!first()) {
        span_.wire.wait(sent_down_[i % kDepth]);
        span_.wire.send(below(), result, count * item_);
        sent_down_[i % kDepth] = span_.wire.post();
      }
    }
    span_.run_inside(speakers_ > 1 ? step_of(call_, CollKind::all_gather, result, part.recv, count)
                                   : step_of(call_, CollKind::broadcast, result, part.recv, count));
  }

  Span& span_;
  const CollCall& call_;
  const int speakers_;
  const int64_t item_, slice_;
  const bool speaks_;
  std::byte *room_ = nullptr, *incoming_ = nullptr, *sums_ = nullptr;
  int64_t under_way_[kDepth] = {-1, -1}, sent_down_[kDepth] = {-1, -1};
};

// Pieces of reduce-scatter's sums, host by host: block h holds what the members of host h get.
struct Blocks {
  int64_t count, bytes, block_bytes;  // of a piece; of the pieces of a host
  const std::byte* send;
  const std::byte* at(int h) const { return send + h * block_bytes; }
};

// Up the hosts as in Chain; the last one sends each sum to whom it belongs, over lanes of their own, because those are
// still busy sending up.
void reduce_scatter_in_order(Span& span, const CollCall& call, const Blocks& blocks) {
  constexpr int kDepth = 3;  // sums on their way up
  const int hosts = span.host_count();
  const bool first = span.host == 0, last = span.host == hosts - 1;
  std::byte* room = span.scratch.get(blocks.block_bytes + (hosts + 1) * blocks.bytes);
  std::byte* incoming = room + blocks.block_bytes;
  std::byte* sums = incoming + blocks.bytes;  // by block; they stay until they have been sent
  span.across->begin(span.header, Wire::Ring::none);
  if (!last) span.across->recv(hosts - 1, call.recv, blocks.bytes);
  span.across->post();
  int64_t sent[kDepth] = {-1, -1, -1};
  std::vector<const void*> inputs;
  for (int h = 0; h < hosts; ++h) {
    span.run_inside(step_of(call, CollKind::all_to_all, blocks.at(h), room, blocks.count));
    inputs.clear();
    if (!first) {
      span.wire.recv(span.member(span.host - 1, span.place), incoming, blocks.bytes);
      span.wire.flush();
      inputs.push_back(incoming);
    }
    for (int p = 0; p < span.here(); ++p) inputs.push_back(room + p * blocks.bytes);
    const bool own = last && h == span.host;
    void* sum = own ? call.recv : sums + h * blocks.bytes;
    reduce(call.dtype, last ? call.redop : partial_op(call), inputs.data(), static_cast<int>(inputs.size()), sum,
           blocks.count, span.size());
    if (own) continue;
    if (last) {
      span.across->send(h, sum, blocks.bytes);
      span.across->flush();
      continue;
    }
    span.wire.wait(sent[h % kDepth]);
    span.wire.send(span.member(span.host + 1, span.place), sum, blocks.bytes);
    sent[h % kDepth] = span.wire.post();
  }
  span.across->finish();
}

}  // namespace

bool spanning_all_reduce(Span& span, const CollCall& call) {
  if (!runs_in_steps(span, call)) return false;
  const int64_t item = dtype_bytes(call.dtype);
  const Part whole{static_cast<const std::byte*>(call.send), static_cast<std::byte*>(call.recv), call.count};
  // What does not divide among the speakers, in cache lines, is left to the first ones.
  const bool split = span.even && call.count * item >= kSplitBytes;
  const int64_t body = split ? call.count / (64 * span.here()) * 64 * span.here() : 0;
  const Part head{whole.send, whole.recv, body};
  const Part tail{whole.send + body * item, whole.recv + body * item, call.count - body};
  span.start();
  if (call.rank_order) {
    if (body > 0) Chain(span, call, span.here()).run(head);
    Chain(span, call, 1).run(tail);
  } else {
    all_reduce_by_all(span, call, head);
    all_reduce_by_first(span, call, tail);
  }
  return true;
}

bool spanning_reduce_scatter(Span& span, const CollCall& call) {
  if (!runs_in_steps(span, call) || !span.in_order || !span.even) return false;
  const int64_t bytes = call.count * dtype_bytes(call.dtype);
  const Blocks blocks{call.count, bytes, span.here() * bytes, static_cast<const std::byte*>(call.send)};
  span.start();
  if (call.count == 0) return true;
  if (call.rank_order) {
    reduce_scatter_in_order(span, call, blocks);
    return true;
  }
  // run_across has scratch of its own algorithm: the sums need other memory.
  std::byte* sums = span.sums.get(span.host_count() * bytes);
  for (int h = 0; h < span.host_count(); ++h)
    span.run_inside(step_of(call, CollKind::reduce_scatter, blocks.at(h), sums + h * bytes, call.count));
  span.run_across(step_of(call, CollKind::reduce_scatter, sums, call.recv, call.count));
  divide(span, call, call.recv, call.count);
  return true;
}

bool spanning_reduce(Span& span, const CollCall& call) {
  if (!runs_in_steps(span, call) || call.rank_order) return false;
  const int64_t item = dtype_bytes(call.dtype), chunk = (4 * kPieceBytes) / item;
  const auto* send = static_cast<const std::byte*>(call.send);
  const bool at_root = call.root == span.wire.index();
  // The root sums for its host, the first of each other host for theirs; the root sums these.
  int root_host = 0, gate = 0;
  for (int h = 0; h < span.host_count(); ++h) {
    for (int p = 0; p < std::ssize(span.hosts[h]); ++p) {
      if (span.member(h, p) != call.root) continue;
      root_host = h;
      if (h == span.host) gate = p;
    }
  }
  const bool speaks = span.place == gate;
  std::byte* room = speaks ? span.scratch.get(span.host_count() * chunk * item) : nullptr;
  span.start();
  for (int64_t begin = 0; begin < call.count; begin += chunk) {
    const int64_t count = std::min(chunk, call.count - begin), bytes = count * item;
    CollCall step = step_of(call, CollKind::reduce, send + begin * item, room, count);
    step.root = gate;
    span.run_inside(step);
    if (!speaks) continue;
    if (!at_root) {
      span.wire.send(call.root, room, bytes);
      span.wire.flush();
      continue;
    }
    std::vector<const void*> inputs = {room};
    for (int h = 0; h < span.host_count(); ++h) {
      if (h == root_host) continue;
      std::byte* slot = room + static_cast<int64_t>(inputs.size()) * chunk * item;
      span.wire.recv(span.member(h, 0), slot, bytes);
      inputs.push_back(slot);
    }
    span.wire.flush();
    reduce(call.dtype, call.redop, inputs.data(), static_cast<int>(inputs.size()),
           static_cast<std::byte*>(call.recv) + begin * item, count, span.size());
  }
  return true;
}

}  // namespace prun
