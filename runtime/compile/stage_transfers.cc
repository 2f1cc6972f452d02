// Each direction of each phase has its own stream and lane, so that a waiting send never blocks a receive. A receive is
// posted one step ahead of the compute that needs it, so that it overlaps and its memory is bounded. A sent tensor is
// freed when something arrives that the other rank has computed with it.
#include "compile/stage_transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {

namespace {

std::vector<std::pair<int, int>> forward_turns(const std::vector<PipelineTurn>& turns) {
  std::vector<std::pair<int, int>> forward;  // chunk, microbatch
  for (const PipelineTurn& turn : turns)
    if (turn.kind == PipelineTurn::Kind::forward) forward.emplace_back(turn.chunk, turn.microbatch);
  return forward;
}

}  // namespace

StageTransfers::StageTransfers(CompileState& state, OpEmitter& emitter) : state_(state), emitter_(emitter) {
  if (!state.plan.pipeline) return;
  find_crossings();
  const std::vector<std::vector<PipelineTurn>>& turns = state.plan.pipeline->turns;
  for (const std::vector<PipelineTurn>& of_rank : turns)
    in_step_ = in_step_ && forward_turns(of_rank) == forward_turns(turns.front());
}

void StageTransfers::send(const StageStep& step) {
  sent_by_turn_.push_back(sent_by_turn_.empty() ? std::nullopt : sent_by_turn_.back());
  cross(step, true);
}

// Returns the send of two slots ago, because in an evaluation nothing arrives that depends on a sent tensor. A neighbor
// posts its receive two slots before it computes, and ranks are at most a pipeline's length apart, so that this send
// has completed and waiting takes no time. Returns nothing if ranks order their slots differently, because a rank might
// then wait for a later slot.
std::vector<OpRef> StageTransfers::gone() const {
  const int64_t turn = std::ssize(sent_by_turn_);
  if (!in_step_ || turn < 2 || !sent_by_turn_[turn - 2]) return {};
  return {*sent_by_turn_[turn - 2]};
}

// A value passes every stage from its producer to its last reader; a rank with several stages receives it once.
void StageTransfers::find_crossings() {
  const Graph& graph = state_.graph;
  const size_t borders = pipeline_stages(state_.plan) - 1;
  forward_.resize(borders);
  backward_.resize(borders);
  struct Span {
    int made = -1;  // stage of the producer
    bool forward = false;
    std::vector<int> readers;  // stages, some more than once
  };
  Table<ValueId, Span> spans(graph.values.size());
  const auto visit = [&](const std::vector<Node>& nodes, bool forward) {
    for (const Node& node : nodes) {
      const int stage = graph.calls[node.call].stage;
      for (ValueId input : node.inputs) {
        std::vector<int>& readers = spans[input].readers;
        if (readers.empty() || readers.back() != stage) readers.push_back(stage);
      }
      for (ValueId output : node.outputs) spans[output].made = stage, spans[output].forward = forward;
    }
  };
  visit(graph.nodes, true);
  visit(state_.backward, false);
  for (ValueId value : graph.values.ids()) {
    const auto& [made, forward, readers] = spans[value];
    if (made < 0 || readers.empty()) continue;
    PRUN_CHECK(forward ? std::ranges::min(readers) >= made : std::ranges::max(readers) <= made,
               graph.values[value].name + " flows against its phase");
    std::vector<int> holders = {rank_of_stage(state_.plan, made)};
    const auto lacks = [&](int stage) {
      return std::ranges::find(holders, rank_of_stage(state_.plan, stage)) == holders.end();
    };
    const int step = forward ? 1 : -1;
    for (int stage = made; std::any_of(readers.begin(), readers.end(), lacks); stage += step) {
      if (!lacks(stage + step)) continue;
      (forward ? forward_ : backward_)[std::min(stage, stage + step)].push_back(value);
      holders.push_back(rank_of_stage(state_.plan, stage + step));
    }
  }
}

// Sends or receives the values of a border; both ends of the pipeline have none.
void StageTransfers::cross(const StageStep& step, bool sends) {
  if (!state_.plan.pipeline || step.front().half == Half::weight) return;
  const bool forward = step.front().phase == Phase::forward;
  const int border = forward == sends ? step.stage : step.stage - 1;
  if (border < 0 || border + 1 >= pipeline_stages(state_.plan)) return;
  const std::vector<ValueId>& values = (forward ? forward_ : backward_)[border];
  int64_t tag = (int64_t{border} * state_.microbatches() + step.front().microbatch) * std::ssize(values);
  for (ValueId value : values) transfer(sends, step, value, tag++);
}

void StageTransfers::transfer(bool sends, const StageStep& step, ValueId value, int64_t tag) {
  const Pipeline& pipeline = *state_.plan.pipeline;
  const ScheduleStep& now = step.front();
  const bool forward = now.phase == Phase::forward;
  const int other_stage = step.stage + (sends == forward ? 1 : -1);
  const int other = rank_of_stage(state_.plan, other_stage), ranks = pipeline_ranks(state_.plan);
  int peer = other - state_.pipeline_rank;
  if (2 * peer > ranks) peer -= ranks;
  if (2 * peer < -ranks) peer += ranks;
  const bool back = pipeline.v_placement && std::min(step.stage, other_stage) >= ranks;

  if (!sends)
    emitter_.tensor_of(value, now.microbatch) = emitter_.activation(state_.graph.values[value], now.microbatch);
  const TensorId tensor = emitter_.input_of(value, now.microbatch);
  Op op = emitter_.op(sends ? (pipeline.puts ? ops::put : ops::send) : (pipeline.puts ? ops::wait_signal : ops::recv),
                      {}, {}, now, pipeline.site, state_.unit_of(sends ? step.back() : now));
  (sends ? op.reads : op.writes) = {tensor};
  op.axis = pipeline.axis;
  op.attrs.set("peer", int64_t{peer});
  op.attrs.set("tag", tag);
  op.lane = static_cast<int>(forward ? MessageLane::forward : MessageLane::backward);
  const StreamId stream =
      emitter_.stream(fmt::format("{} {}{}", sends ? "send" : "recv", phase_name(now.phase), back ? " back" : ""));
  if (sends) {
    const OpRef sent = emitter_.append(stream, std::move(op));
    std::vector<OpRef>& of_stage = sent_[{now.phase, step.stage}];
    of_stage.resize(state_.plan.microbatches, {0, -1});
    of_stage[now.microbatch] = sent;
    sent_by_turn_.back() = sent;
    return;
  }
  std::vector<OpRef> floors = emitter_.last("compute");
  if (std::optional<OpRef> sent = used_before(step, other_stage)) floors.push_back(*sent);
  if (pipeline.puts) {
    Op offer = op;
    offer.def = &ops::signal;
    emitter_.append(stream, std::move(offer), floors);
    op.reads = op.writes;  // the offered tensor
    floors.clear();
  }
  emitter_.append(stream, std::move(op), floors);
}

// Returns the slots of a stage without those that compute gradients of weights only, which receive nothing.
const std::vector<std::pair<Phase, int>>& StageTransfers::turns_of_stage(int stage) {
  const auto [found, fresh] = turns_of_stage_.try_emplace(stage);
  if (!fresh) return found->second;
  const int rank = rank_of_stage(state_.plan, stage);
  for (const PipelineTurn& turn : state_.plan.pipeline->turns[rank])
    if (turn.kind != PipelineTurn::Kind::weight && stage_of_chunk(state_.plan, rank, turn.chunk) == stage)
      found->second.emplace_back(turn.kind == PipelineTurn::Kind::forward ? Phase::forward : Phase::backward,
                                 turn.microbatch);
  return found->second;
}

// Returns the last send over this border that the other rank has consumed before it computes the tensor that `step`
// receives. That send has completed by then, so that waiting for it takes no time.
std::optional<OpRef> StageTransfers::used_before(const StageStep& step, int other_stage) {
  const ScheduleStep& now = step.front();
  const auto sent = sent_.find({now.phase == Phase::forward ? Phase::backward : Phase::forward, step.stage});
  if (sent == sent_.end()) return std::nullopt;
  OpRef last{0, -1};
  for (const auto& [phase, microbatch] : turns_of_stage(other_stage)) {
    if (phase == now.phase && microbatch == now.microbatch) break;
    if (phase != now.phase && last.index < sent->second[microbatch].index) last = sent->second[microbatch];
  }
  return last.index < 0 ? std::nullopt : std::optional(last);
}

// Each twin sends its gradient to all others and adds all gradients in the order of twin ids, so that the results are
// bitwise identical.
void StageTransfers::exchange_tied_gradients(const StepIndex& index) {
  const Table<UnitId, Unit>& units = state_.graph.units;
  for (UnitId owner : units.ids()) {
    if (!units[owner].twin_of.none() || state_.is_frozen(owner)) continue;
    std::vector<UnitId> twins = {owner};
    UnitId here;
    for (UnitId other : units.ids())
      if (units[other].twin_of == owner) twins.push_back(other);
    for (UnitId twin : twins)
      if (rank_of(twin, index) == state_.pipeline_rank) here = twin;
    if (twins.size() > 1 && !here.none()) exchange(here, twins, index);
  }
}

int StageTransfers::rank_of(UnitId unit, const StepIndex& index) const {
  return rank_of_stage(state_.plan, state_.graph.calls[index.first_call(unit)].stage);
}

void StageTransfers::exchange(UnitId here, const std::vector<UnitId>& twins, const StepIndex& index) {
  const TensorId own = state_.storage[here].grad;
  const Site& site = state_.plan.pipeline->site;
  const std::string& name = state_.unit_name(here);
  std::vector<TensorId> gradients;
  for (UnitId twin : twins) {
    gradients.push_back(own);
    if (twin == here) continue;
    gradients.back() =
        add_tensor(state_.program, name + ".tied", Role::reduce, state_.program.tensors[own].type(), false, site);
    for (bool sends : {true, false}) {
      Op op = make_op(sends ? ops::send : ops::recv, {}, {}, Phase::step, site);
      (sends ? op.reads : op.writes) = {gradients.back()};
      if (sends) op.reads = {own};
      op.axis = state_.plan.pipeline->axis;
      op.attrs.set("peer", int64_t{rank_of(twin, index) - state_.pipeline_rank});
      op.attrs.set("tag", int64_t{(sends ? here : twin).index()});
      op.lane = static_cast<int>(MessageLane::tied);
      op.unit = name;
      const StreamId stream = emitter_.stream(sends ? "send tied" : "recv tied");
      emitter_.append(stream, std::move(op), emitter_.last("compute"));
    }
  }
  const ScheduleStep step{Phase::step, index.first_call(here)};
  TensorId sum = gradients.front();
  for (TensorId gradient : std::span(gradients).subspan(1)) {
    if (gradient == own) std::swap(sum, gradient);
    emitter_.add_in_place(sum, gradient, step, site);
  }
}

}  // namespace prun
