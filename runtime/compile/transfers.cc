// What crosses the borders between the stages of a pipeline: activations forward, their gradients backward, and at the
// end of a step the gradients of tied weights.
//
// Each direction of each phase has a stream and a lane of its own, so that a rank that waits to send never keeps
// another from receiving. A receive runs one turn ahead of the compute that needs it: it hides, and its memory is
// bounded. What was sent is free when something arrives that the other rank has made with it.
#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "compile/ring_attention.h"
#include "compile/step_builder.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr int kForwardLane = 32, kBackwardLane = 33, kTiedLane = 34, kRingLane = 35;  // apart from those of streams

}  // namespace

void StepBuilder::find_crossings() {
  if (!state_.plan.pipeline) return;
  const Graph& graph = state_.graph;
  size_t borders = static_cast<size_t>(pipeline_stages(state_.plan) - 1), values = graph.values.size();
  forward_crossings_.resize(borders);
  backward_crossings_.resize(borders);
  std::vector<int> made(values, -1), lowest(values, INT32_MAX), highest(values, -1);  // stages
  std::vector<bool> forward(values, false);
  auto visit = [&](const std::vector<Node>& nodes, bool is_forward) {
    for (const Node& node : nodes) {
      int stage = graph.calls[node.call].stage;
      for (ValueId input : node.inputs) {
        lowest[input] = std::min(lowest[input], stage);
        highest[input] = std::max(highest[input], stage);
      }
      for (ValueId output : node.outputs) made[output] = stage, forward[output] = is_forward;
    }
  };
  visit(graph.nodes, true);
  visit(state_.backward, false);
  for (size_t v = 0; v < values; ++v) {
    if (made[v] < 0 || highest[v] < 0) continue;
    PRUN_CHECK(forward[v] ? lowest[v] >= made[v] : highest[v] <= made[v],
               graph.values[v].name + " flows against its phase");
    if (forward[v])
      for (int s = made[v]; s < highest[v]; ++s) forward_crossings_[s].push_back(static_cast<int>(v));
    else
      for (int s = lowest[v]; s < made[v]; ++s) backward_crossings_[s].push_back(static_cast<int>(v));
  }
}

// The border that a turn's values come over (sends: go over), and the stage beyond; nothing: an end of the pipeline, or
// the same rank.
void StepBuilder::receive(const StageStep& turn) {
  if (!state_.plan.pipeline || turn.front().half == Half::weight) return;
  bool forward = turn.front().phase == Phase::forward;
  int border = forward ? turn.stage - 1 : turn.stage, stages = pipeline_stages(state_.plan);
  if (border < 0 || border + 1 >= stages) return;
  const std::vector<ValueId>& values = (forward ? forward_crossings_ : backward_crossings_)[border];
  int64_t first =
      (int64_t{border} * state_.plan.microbatches + turn.front().microbatch) * static_cast<int64_t>(values.size());
  for (size_t i = 0; i < values.size(); ++i) transfer(false, turn, values[i], first + static_cast<int64_t>(i));
}

void StepBuilder::send(const StageStep& turn) {
  if (!state_.plan.pipeline || turn.front().half == Half::weight) return;
  bool forward = turn.front().phase == Phase::forward;
  int border = forward ? turn.stage : turn.stage - 1, stages = pipeline_stages(state_.plan);
  if (border < 0 || border + 1 >= stages) return;
  const std::vector<ValueId>& values = (forward ? forward_crossings_ : backward_crossings_)[border];
  int64_t first =
      (int64_t{border} * state_.plan.microbatches + turn.front().microbatch) * static_cast<int64_t>(values.size());
  for (size_t i = 0; i < values.size(); ++i) transfer(true, turn, values[i], first + static_cast<int64_t>(i));
}

void StepBuilder::transfer(bool sends, const StageStep& turn, int value, int64_t tag) {
  const ScheduleStep& now = turn.front();
  bool forward = now.phase == Phase::forward;
  int other_stage = turn.stage + (sends == forward ? 1 : -1);
  int other = rank_of_stage(state_.plan, other_stage), ranks = pipeline_ranks(state_.plan);
  if (other == state_.pipeline_rank) return;  // the tensor is here
  int peer = other - state_.pipeline_rank;
  if (2 * peer > ranks) peer -= ranks;
  if (2 * peer < -ranks) peer += ranks;
  bool back = state_.plan.pipeline->v_placement && std::min(turn.stage, other_stage) >= ranks;

  int outer = microbatch_;
  microbatch_ = now.microbatch;
  const Value& v = state_.graph.values[value];
  if (!sends) tensor_of(value) = compute_tensor(microbatch_name(v.name), v.type, v.site);
  const bool puts = state_.plan.pipeline->puts;
  Op op;
  op.def = sends ? (puts ? &ops::put : &ops::send) : (puts ? &ops::wait_signal : &ops::recv);
  (sends ? op.reads : op.writes) = {input_of(value)};
  op.axis = state_.plan.pipeline->axis;
  op.attrs.set("peer", int64_t{peer});
  op.attrs.set("tag", tag);
  op.lane = forward ? kForwardLane : kBackwardLane;
  op.phase = now.phase;
  op.unit = unit_name(unit_of(sends ? turn.calls.back() : now));
  op.microbatch = state_.plan.microbatches > 1 ? now.microbatch : -1;
  op.site = state_.plan.pipeline->site;
  int stream =
      recorder_.stream(fmt::format("{} {}{}", sends ? "send" : "recv", phase_name(now.phase), back ? " back" : ""));
  if (sends) {
    sent_[{now.phase, turn.stage, now.microbatch}] = recorder_.record(stream, std::move(op));
  } else {
    std::vector<OpRef> floors = recorder_.last_compute();
    if (std::optional<OpRef> sent = used_before(turn, other_stage)) floors.push_back(*sent);
    if (puts) {
      Op offer = op;
      offer.def = &ops::signal;
      recorder_.record(stream, std::move(offer), floors);
      op.reads = op.writes;  // what the signal has offered
      floors.clear();
    }
    recorder_.record(stream, std::move(op), floors);
  }
  microbatch_ = outer;
}

// The last send over this border that the other rank has computed with when it makes what `turn` receives. So it has
// ended by then, and waiting for it takes no time.
std::optional<OpRef> StepBuilder::used_before(const StageStep& turn, int other_stage) const {
  std::optional<OpRef> last;
  int other = rank_of_stage(state_.plan, other_stage);
  for (const PipelineTurn& theirs : state_.plan.pipeline->turns[other]) {
    if (theirs.kind == PipelineTurn::Kind::weight) continue;
    if (stage_of_chunk(state_.plan, other, theirs.chunk) != other_stage) continue;
    Phase phase = theirs.kind == PipelineTurn::Kind::forward ? Phase::forward : Phase::backward;
    bool same = phase == turn.front().phase;
    if (same && theirs.microbatch == turn.front().microbatch) break;
    auto sent = same ? sent_.end() : sent_.find({phase, turn.stage, theirs.microbatch});
    if (sent != sent_.end() && (!last || last->index < sent->second.index)) last = sent->second;
  }
  return last;
}

// Attention over a ring of ranks: blocks on the compute stream, keys, values and their gradients on streams of their
// own.
void StepBuilder::lower_ring(const Node& node, const ScheduleStep& turn) {
  RingNode ring;
  ring.qkv = state_.graph.values[node.inputs[0]].type;
  ring.attrs = node.attrs;
  for (ValueId input : node.inputs) ring.reads.push_back(input_of(input));
  for (ValueId output : node.outputs) {
    const Value& value = state_.graph.values[output];
    ring.writes.push_back(tensor_of(output) = compute_tensor(microbatch_name(value.name), value.type, value.site));
  }
  std::string axis = node.attrs.text("tokens_axis"), name = state_.graph.values[node.outputs[0]].name;
  auto temporary = [&](std::string_view suffix, TensorType type) {
    return compute_tensor(microbatch_name(fmt::format("{}.{}", name, suffix)), std::move(type), node.site);
  };
  bool forward = node.op == &ops::ring_attention;
  for (RingStep& step :
       (forward ? lower_ring_attention : lower_ring_attention_grad)(ring, state_.plan.mesh.size(axis), temporary)) {
    Op op;
    op.def = step.op;
    op.reads = std::move(step.reads);
    op.writes = std::move(step.writes);
    op.attrs = std::move(step.attrs);
    op.phase = turn.phase;
    op.unit = unit_name(unit_of(turn));
    op.microbatch = state_.plan.microbatches > 1 ? turn.microbatch : -1;
    op.site = node.site;
    if (op.communicates()) {
      op.axis = axis;
      op.lane = kRingLane;
    }
    bool arrives = op.is(ops::recv);
    recorder_.record(recorder_.stream(step.stream), std::move(op),
                     arrives ? recorder_.last_compute() : std::vector<OpRef>());
  }
}

// Both twins get the sum of both gradients: the sum of two numbers is the same in either order.
void StepBuilder::exchange_tied_gradients() {
  const Graph& graph = state_.graph;
  auto rank_of = [&](UnitId unit) {
    for (const Call& call : graph.calls)
      if (call.unit == unit) return rank_of_stage(state_.plan, call.stage);
    return -1;
  };
  for (size_t u = 0; u < graph.units.size(); ++u) {
    if (graph.units[u].twin_of < 0) continue;
    int here = state_.pipeline_rank, owner = rank_of(graph.units[u].twin_of), twin = rank_of(static_cast<int>(u));
    if (here != owner && here != twin) continue;
    const UnitId unit = here == twin ? UnitId(u) : graph.units[u].twin_of;
    const int other = here == twin ? owner : twin;
    const Tensor own = program_.tensors[state_.storage[unit].grad];
    TensorId received =
        add_tensor(program_, unit_name(unit) + ".tied", Role::reduce, own.type(), false, state_.plan.pipeline->site);
    for (bool sends : {true, false}) {
      Op op;
      op.def = sends ? &ops::send : &ops::recv;
      (sends ? op.reads : op.writes) = {sends ? state_.storage[unit].grad : received};
      op.axis = state_.plan.pipeline->axis;
      op.attrs.set("peer", int64_t{other - here});
      op.attrs.set("tag", static_cast<int64_t>(u));
      op.lane = kTiedLane;
      op.phase = Phase::step;
      op.unit = unit_name(unit);
      op.site = state_.plan.pipeline->site;
      recorder_.record(recorder_.stream(fmt::format("{} tied", op.def->name)), std::move(op), recorder_.last_compute());
    }
    ScheduleStep end;
    end.phase = Phase::step;
    end.call = first_call(unit);
    add_in_place(state_.storage[unit].grad, received, end, 0, state_.plan.pipeline->site);
  }
}

}  // namespace prun
