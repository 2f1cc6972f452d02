#include "ir/carried.h"

#include <algorithm>
#include <utility>

namespace prun {
namespace {

bool overlap(int64_t a, int64_t a_bytes, int64_t b, int64_t b_bytes) { return a < b + b_bytes && b < a + a_bytes; }

// Returns whether a repeat moves the buffer between the slots of its pool. A persistent buffer keeps its slot.
bool takes_turns(const Program& program, const Body& body, BufferId id) {
  const auto is_this = [id](const Repeat::Member& member) { return member.buffer == id; };
  return body.repeat.any() && (!program.buffers[id].persistent || std::ranges::any_of(body.repeat.members, is_this));
}

bool share_bytes(const Program& program, const Body& body, const Tensor& a, const Tensor& b) {
  if (a.bytes() == 0 || b.bytes() == 0) return false;
  const Buffer &of_a = program.buffers[a.buffer], &of_b = program.buffers[b.buffer];
  if (a.buffer == b.buffer) return overlap(a.byte_offset, a.bytes(), b.byte_offset, b.bytes());
  if (of_a.space != of_b.space) return false;
  if (of_a.pool >= 0 && of_a.pool == of_b.pool &&
      (of_a.slot == of_b.slot || takes_turns(program, body, a.buffer) || takes_turns(program, body, b.buffer)))
    return true;
  return of_a.offset >= 0 && of_b.offset >= 0 &&
         overlap(of_a.offset + a.byte_offset, a.bytes(), of_b.offset + b.byte_offset, b.bytes());
}

// Returns the first tensor of `other` that overlaps bytes of `op` if at least one of the two writes them.
std::optional<TensorId> conflict(const Program& program, const Body& body, const Op& op, const Op& other) {
  const auto meets = [&](const std::vector<TensorId>& mine, TensorId its) {
    for (const TensorId id : mine)
      if (share_bytes(program, body, program.tensors[id], program.tensors[its])) return true;
    return false;
  };
  for (const TensorId id : other.writes)
    if (meets(op.reads, id) || meets(op.writes, id)) return id;
  for (const TensorId id : other.reads)
    if (meets(op.writes, id)) return id;
  return std::nullopt;
}

bool share_lane(const Program& program, const Op& a, const Op& b) {
  return a.communicates() && b.communicates() && lane_of(program, a) == lane_of(program, b);
}

}  // namespace

// Reads the ops that precede the last one of stream 0, backwards from each stream's end. If streams are joined there,
// few ops show it.
Table<StreamId, int> ended_with(const Body& body) {
  Table<StreamId, int> ended(body.streams.size(), 0), read(body.streams.size(), 0);
  int64_t left = 0;  // ops that are not known to have ended
  for (const StreamId s : body.streams.ids()) {
    const int ops = static_cast<int>(body.streams[s].ops.size());
    if (s == 0 || body.streams[0].ops.empty())
      ended[s] = ops;
    else
      left += ops;
  }
  for (bool more = true; more && left > 0;) {
    more = false;
    for (const StreamId s : body.streams.ids()) {
      const int first = std::exchange(read[s], ended[s]);
      for (int i = ended[s] - 1; i >= first && left > 0; --i)
        for (const Edge& edge : body.streams[s].ops[i].waits) {
          const int further = edge.back == 0 ? edge.index + 1 - ended[edge.stream] : 0;
          if (further <= 0) continue;
          ended[edge.stream] += further;
          left -= further;
          more = true;
        }
    }
  }
  return ended;
}

bool goes_on(const Body& body) {
  const Table<StreamId, int> ended = ended_with(body);
  for (const StreamId s : body.streams.ids())
    if (ended[s] < std::ssize(body.streams[s].ops)) return true;
  return false;
}

// Copies the ops without operands, because the order depends on streams and edges only.
Body TwoSteps::in_a_row(const Body& body) {
  Body both;
  for (const Stream& stream : body.streams) {
    Stream& out = both.streams.emplace_back();
    out.ops.reserve(2 * stream.ops.size());
    for (const int step : {0, 1})
      for (const Op& op : stream.ops) {
        Op bare;
        bare.def = op.def;
        for (Edge edge : op.waits) {
          if (step < edge.back) continue;
          if (step > edge.back) edge.index += static_cast<int>(body.streams[edge.stream].ops.size());
          bare.waits.push_back({edge.stream, edge.index, 0});
        }
        out.ops.push_back(std::move(bare));
      }
  }
  return both;
}

TwoSteps::TwoSteps(const Body& body) : order_(in_a_row(body)) {
  for (const Stream& stream : body.streams) ops_.push_back(std::ssize(stream.ops));
}

bool TwoSteps::before(OpRef a, OpRef b) const { return order_.before(a, {b.stream, ops_[b.stream] + b.index}); }

std::optional<Overtaking> overtaking(const Program& program, const Body& body, const TwoSteps& steps, OpRef carried) {
  const Op& op = body.streams[carried.stream].ops[carried.index];
  for (const StreamId s : body.streams.ids()) {
    const std::vector<Op>& ops = body.streams[s].ops;
    for (int i = 0; i < std::ssize(ops) && !steps.before(carried, {s, i}); ++i) {
      if (const std::optional<TensorId> tensor = conflict(program, body, op, ops[i]))
        return Overtaking{{s, i}, *tensor};
      if (share_lane(program, op, ops[i])) return Overtaking{{s, i}, {}};
    }
  }
  const OpRef last{0, static_cast<int>(body.streams[0].ops.size()) - 1};
  return steps.before(carried, last) ? std::nullopt : std::optional(Overtaking{last, {}});
}

}  // namespace prun
