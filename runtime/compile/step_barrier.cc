// Streams meet at the end of a step, and of each batch of an evaluation: the last op of stream 0 waits for the last op
// of every other stream, and the first op of every other stream waits for that op of the step before. One step's order
// then proves every step's.
//
// Surprising fact: the gathers that a step begins with stand at the end of the step before and go on over it. The next
// step's first readers wait for them, by an edge to the step before.
#include <algorithm>
#include <set>

#include "compile/compile_state.h"
#include "compile/ir_build.h"
#include "ir/carried.h"
#include "ir/ops.h"
#include "ir/order.h"

namespace prun {

namespace {

// Of each stream, where its ops begin that go on over the end.
using Begins = Table<StreamId, int>;

Begins nothing_goes_on(const Body& body) {
  Begins begins;
  for (const Stream& stream : body.streams) begins.push_back(std::ssize(stream.ops));
  return begins;
}

// The last ops of each stream that gather what persists from what persists, and that nothing in the step waits for.
Begins candidates(const Program& program, const Body& body) {
  std::set<std::pair<StreamId, int>> awaited;
  for (const Stream& stream : body.streams)
    for (const Op& op : stream.ops)
      for (const Edge& edge : op.waits)
        if (edge.back == 0) awaited.insert({edge.stream, edge.index});
  const auto persists = [&](TensorId id) { return program.buffers[program.tensors[id].buffer].persistent; };
  Begins begins = nothing_goes_on(body);
  for (StreamId s = 1; s < body.streams.next(); ++s)
    for (int i = begins[s] - 1; i >= 0 && !awaited.contains({s, i}); --i) {
      const Op& op = body.streams[s].ops[i];
      const bool gathers = op.is(ops::all_gather) && op.phase == Phase::step && persists(op.reads[0]) &&
                           persists(op.writes[0]) &&
                           program.buffers[program.tensors[op.writes[0]].buffer].role == Role::gathered;
      if (!gathers) break;
      begins[s] = i;
    }
  return begins;
}

bool touches(const Program& program, const Op& op, BufferId buffer) {
  const auto in = [&](const std::vector<TensorId>& ids) {
    return std::any_of(ids.begin(), ids.end(), [&](TensorId id) { return program.tensors[id].buffer == buffer; });
  };
  return in(op.reads) || in(op.writes);
}

// The first op of each other stream that touches what a gather has made waits for it in the next step.
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

// The last of each stream first: who waits for it waits for those before.
void await_in_next_step(const Program& program, Body& body, const Begins& begins) {
  for (StreamId s : body.streams.ids())
    for (int i = std::ssize(body.streams[s].ops) - 1; i >= begins[s]; --i) await_in_next_step(program, body, {s, i});
}

// Something waits for the last op of stream 0, or there is none: where a rank of a pipeline trains nothing.
bool ends_elsewhere(const Body& body, const Order& order, const Begins& begins) {
  const int last = std::ssize(body.streams[0].ops) - 1;
  for (StreamId s = 1; s < body.streams.next(); ++s)
    if (const int tail = begins[s] - 1; tail >= 0 && (last < 0 || order.before({0, last}, {s, tail}))) return true;
  return false;
}

void join(Program& program, Body& body, const Begins& begins) {
  Order order(body);
  std::vector<Op>& main = body.streams[0].ops;
  if (ends_elsewhere(body, order, begins)) {
    const TensorId end = add_tensor(program, "end", Role::workspace, {Dtype::f32, {}}, false, {});
    main.push_back(make_zero(end, Phase::step, {}));
    order = Order(body);
  }
  if (main.empty()) return;
  const OpRef last{0, static_cast<int>(main.size()) - 1};
  for (StreamId s = 1; s < body.streams.next(); ++s) {
    std::vector<Op>& ops = body.streams[s].ops;
    if (ops.empty()) continue;
    const OpRef tail{s, begins[s] - 1};
    if (tail.index >= 0 && !order.before(tail, last)) main.back().waits.push_back({s, tail.index, 0});
    ops.front().waits.push_back({0, last.index, 1});
  }
}

// Whether the gathers that go on meet nothing in the next step.
bool meet_nothing(const Program& program, const Body& body, const Begins& begins) {
  const TwoSteps steps(body);
  for (StreamId s : body.streams.ids())
    for (int i = begins[s]; i < std::ssize(body.streams[s].ops); ++i)
      if (overtaking(program, body, steps, {s, i})) return false;
  return true;
}

// False: something of the next step would come before a gather, and the program is what it was.
bool carry(Program& program) {
  Body& step = program.step();
  const Begins begins = candidates(program, step);
  if (begins == nothing_goes_on(step)) return false;
  Body before = step;
  const size_t buffers = program.buffers.size(), tensors = program.tensors.size();
  join(program, step, begins);
  await_in_next_step(program, step, begins);
  if (meet_nothing(program, step, begins)) return true;
  step = std::move(before);
  program.buffers.resize(buffers);
  program.tensors.resize(tensors);
  return false;
}

}  // namespace

void add_step_barrier(Program& program, bool carries) {
  for (BodyId id : program.bodies.ids()) {
    Body& body = program.bodies[id];
    if (body.when.every == 0 || body.streams.empty()) continue;
    if (!Order(body).stuck().empty()) continue;  // verify says it better
    if (id == kStepBody && carries && carry(program)) continue;
    join(program, body, nothing_goes_on(body));
  }
}

}  // namespace prun
