// Joins all streams at the end of a step, and of each batch of an evaluation:
//
//   stream 0   ... last op          waits for the last op of every other stream
//   others     first op ...         waits for the previous step's last op of stream 0
//
// The order of one step then proves that of every step.
//
// Surprising fact: the first gathers of a step are at the end of the previous step and are carried over the barrier.
// The next step's first readers wait for them by an edge to the previous step.
#include <algorithm>
#include <map>
#include <set>

#include "compile/compile_state.h"
#include "compile/ir_build.h"
#include "ir/carried.h"
#include "ir/ops.h"
#include "ir/order.h"

namespace prun {

namespace {

// First op of each stream that is carried over the end of the step.
using Begins = Table<StreamId, int>;

Begins nothing_goes_on(const Body& body) {
  Begins begins;
  for (const Stream& stream : body.streams) begins.push_back(std::ssize(stream.ops));
  return begins;
}

// Selects the ops to carry over: gathers between persistent buffers, and a cast to the wire dtype that precedes one.
class Candidates {
 public:
  Candidates(const Program& program, const Body& body) : program_(program), body_(body) {
    for (const Stream& stream : body.streams)
      for (const Op& op : stream.ops) {
        for (const Edge& edge : op.waits)
          if (edge.back == 0) awaited_.insert({edge.stream, edge.index});
        for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
          for (const TensorId id : *ids) ++uses_[program.tensors[id].buffer];
      }
  }

  // Returns the trailing gathers of each stream, as long as nothing in the step waits for them.
  Begins find() {
    Begins begins = nothing_goes_on(body_);
    for (StreamId s = 1; s < body_.streams.next(); ++s) {
      const std::vector<Op>& ops = body_.streams[s].ops;
      for (int i = begins[s] - 1; i >= 0 && is_gather(s, i); i = begins[s] - 1) {
        const TensorId from = ops[i].reads[0];
        const bool cast = !persists(from);
        if (cast && !(i > 0 && makes_for_wire(s, i - 1, from))) break;
        if (cast) wires_.push_back(program_.tensors[from].buffer);
        begins[s] = cast ? i - 1 : i;
      }
    }
    return begins;
  }
  // Returns the buffers between a cast and its gather, which must become persistent.
  const std::vector<BufferId>& wires() const { return wires_; }

 private:
  const Buffer& buffer(TensorId id) const { return program_.buffers[program_.tensors[id].buffer]; }
  bool persists(TensorId id) const { return buffer(id).persistent; }
  bool is_alone(StreamId stream, int index) const {
    return !awaited_.contains({stream, index}) && body_.streams[stream].ops[index].phase == Phase::step;
  }
  bool is_gather(StreamId stream, int index) const {
    const Op& op = body_.streams[stream].ops[index];
    return op.is(ops::all_gather) && is_alone(stream, index) && persists(op.writes[0]) &&
           buffer(op.writes[0]).role == Role::gathered;
  }
  bool makes_for_wire(StreamId stream, int index, TensorId wire) const {
    const Op& op = body_.streams[stream].ops[index];
    return op.is(ops::cast) && is_alone(stream, index) && op.writes[0] == wire && persists(op.reads[0]) &&
           uses_.at(program_.tensors[wire].buffer) == 2;
  }

  const Program& program_;
  const Body& body_;
  std::set<std::pair<StreamId, int>> awaited_;
  std::map<BufferId, int> uses_;
  std::vector<BufferId> wires_;
};

bool touches(const Program& program, const Op& op, BufferId buffer) {
  const auto in = [&](const std::vector<TensorId>& ids) {
    return std::any_of(ids.begin(), ids.end(), [&](TensorId id) { return program.tensors[id].buffer == buffer; });
  };
  return in(op.reads) || in(op.writes);
}

// Makes the first op of each other stream that accesses the gather's result wait for it in the next step.
void await_in_next_step(const Program& program, Body& body, OpRef gather) {
  const BufferId made = program.tensors[body.streams[gather.stream].ops[gather.index].writes[0]].buffer;
  for (StreamId s : body.streams.ids()) {
    if (s == gather.stream) continue;
    for (Op& op : body.streams[s].ops) {
      const auto waits = [&](const Edge& edge) {
        return edge.back == 1 && edge.stream == gather.stream && edge.index >= gather.index;
      };
      if (std::any_of(op.waits.begin(), op.waits.end(), waits)) break;
      if (!touches(program, op, made)) continue;
      op.waits.push_back({gather.stream, gather.index, 1});
      break;
    }
  }
}

// Starts with the last gather of each stream, because an op that waits for it has waited for the earlier ones.
void await_in_next_step(const Program& program, Body& body, const Begins& begins) {
  for (StreamId s : body.streams.ids())
    for (int i = std::ssize(body.streams[s].ops) - 1; i >= begins[s]; --i)
      if (body.streams[s].ops[i].communicates()) await_in_next_step(program, body, {s, i});
}

// Returns whether another op follows the last op of stream 0, or stream 0 is empty (a pipeline rank that trains
// nothing).
bool ends_elsewhere(const Body& body, const Order& order, const Begins& begins) {
  const int last = std::ssize(body.streams[0].ops) - 1;
  for (StreamId s = 1; s < body.streams.next(); ++s)
    if (const int tail = begins[s] - 1; tail >= 0 && (last < 0 || order.before({0, last}, {s, tail}))) return true;
  return false;
}

// `order`: of the body before it is joined.
void join_streams(Program& program, Body& body, const Order& order, const Begins& begins) {
  std::vector<Op>& main = body.streams[0].ops;
  const int ordered = static_cast<int>(main.size()) - 1;  // last op of stream 0 in `order`
  if (ends_elsewhere(body, order, begins)) {
    const TensorId end = add_tensor(program, "end", Role::workspace, {Dtype::f32, {}}, false, {});
    main.push_back(make_zero(end, Phase::step, {}));
  }
  if (main.empty()) return;
  const int last = static_cast<int>(main.size()) - 1;
  for (StreamId s = 1; s < body.streams.next(); ++s) {
    std::vector<Op>& ops = body.streams[s].ops;
    if (ops.empty()) continue;
    const OpRef tail{s, begins[s] - 1};
    const bool waits = tail.index >= 0 && (ordered < 0 || !order.before(tail, {0, ordered}));
    if (waits) main.back().waits.push_back({s, tail.index, 0});
    ops.front().waits.push_back({0, last, 1});
  }
}

// Returns whether no op of the next step conflicts with a carried gather.
bool meet_nothing(const Program& program, const Body& body, const Begins& begins) {
  const TwoSteps steps(body);
  for (StreamId s : body.streams.ids())
    for (int i = begins[s]; i < std::ssize(body.streams[s].ops); ++i)
      if (overtaking(program, body, steps, {s, i})) return false;
  return true;
}

// Returns false, with the program unchanged, if an op of the next step could overtake a gather.
bool carry(Program& program, const Order& order) {
  Body& step = program.step();
  Candidates candidates(program, step);
  const Begins begins = candidates.find();
  if (begins == nothing_goes_on(step)) return false;
  Body before = step;
  const size_t buffers = program.buffers.size(), tensors = program.tensors.size();
  for (BufferId wire : candidates.wires()) program.buffers[wire].persistent = true;
  join_streams(program, step, order, begins);
  await_in_next_step(program, step, begins);
  if (meet_nothing(program, step, begins)) return true;
  for (BufferId wire : candidates.wires()) program.buffers[wire].persistent = false;
  step = std::move(before);
  program.buffers.resize(buffers);
  program.tensors.resize(tensors);
  return false;
}

}  // namespace

void add_step_barrier(Program& program, bool carries) {
  for (BodyId id : program.bodies.ids()) {
    Body& body = program.bodies[id];
    // A program without steps is an evaluation or a prediction alone, whose batches follow each other.
    const bool once = id == kInitBody || (body.when.every == 0 && program.schedule.steps > 0);
    if (once || body.streams.empty()) continue;
    const Order order(body);
    if (!order.stuck().empty()) continue;  // verify reports a deadlock better
    if (id == kStepBody && carries && carry(program, order)) continue;
    join_streams(program, body, order, nothing_goes_on(body));
  }
}

}  // namespace prun
