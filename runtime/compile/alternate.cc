// Emits the ops of a slot, or of two slots that run at once (prun.both).
//
//     forward of i    attention, route | all_to_all |            | experts | all_to_all | ...
//     backward of j                    | d combine  | all_to_all |         | d experts  | ...
//
// The ops of both alternate on the compute stream: before an op of one that waits for a collective come ops of the
// other, up to the first that waits, too. The recorded order is the meaning, so that nothing else changes.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "compile/step_builder.h"

namespace prun {

void StepBuilder::emit(const std::vector<int>& turns) {
  struct Slot {
    std::vector<Piece> pieces;
    size_t next = 0;
    std::set<ValueId> arriving;  // results of collectives since the other slot ran
    bool ended() const { return next == pieces.size(); }
    bool waits() const {
      const Node* node = pieces[next].node;
      return node != nullptr &&
             std::ranges::any_of(node->inputs, [&](ValueId input) { return arriving.contains(input); });
    }
  };
  std::vector<Slot> slots;
  slots.reserve(turns.size());
  for (const int turn : turns) slots.push_back({pieces_of(turn)});
  alternates_ = slots.size() > 1;
  while (std::ranges::any_of(slots, [](const Slot& slot) { return !slot.ended(); })) {
    for (Slot& slot : slots) {
      slot.arriving.clear();
      while (!slot.ended() && !slot.waits()) {
        const Piece& piece = slot.pieces[slot.next++];
        piece.emit ? piece.emit() : lower(*piece.node, *piece.step);
        if (alternates_ && piece.node != nullptr && piece.node->op->op_class == OpClass::communication)
          slot.arriving.insert(piece.node->outputs.begin(), piece.node->outputs.end());
      }
    }
  }
  alternates_ = false;
}

// Returns what a slot emits: of each call the hooks before it, its nodes, and the hooks after it; then the sends.
std::vector<StepBuilder::Piece> StepBuilder::pieces_of(int turn) {
  const StageStep& stage = state_.steps[turn];
  std::vector<Piece> pieces;
  for (size_t c = 0; c < stage.calls.size(); ++c) {
    const ScheduleStep& step = stage.calls[c];
    const ScheduleStep* next = c + 1 < stage.calls.size() ? &stage.calls[c + 1] : first_call_after(turn);
    if (step.half != Half::weight) pieces.push_back({[this, &step, next] { hooks(step, false, next); }});
    add_compute(step, pieces);
    pieces.push_back({[this, &step, next] { hooks(step, true, next); }});
  }
  pieces.push_back({[this, &stage] { transfers_.send(stage); }});
  return pieces;
}

void StepBuilder::add_compute(const ScheduleStep& step, std::vector<Piece>& pieces) {
  const bool backward = step.phase == Phase::backward, makes_gradients = backward && step.half != Half::input;
  const bool again = backward && index_.recomputes(step);
  if (again && step.half != Half::weight) recompute(step, pieces);
  if (makes_gradients) {
    pieces.push_back({[this, &step] {
      gradients_.take_early(step);
      if (index_.is_first(step) && index_.is_first_call(step)) gradients_.zero_missing(step);
    }});
  }
  const auto nodes = std::make_shared<const std::vector<const Node*>>(index_.nodes_of(step));
  for (const Node* node : *nodes) {
    if (backward && !again && index_.gathers_again(step.call))
      pieces.push_back({[this, node, nodes, &step] { gather_again(*node, *nodes, step); }});
    add_node(*node, step, pieces);
  }
  if (makes_gradients) pieces.push_back({[this, &step] { gradients_.sum_partial(step); }});
}

void StepBuilder::add_node(const Node& node, const ScheduleStep& step, std::vector<Piece>& pieces) {
  pieces.push_back({{}, &node, &step});
}

// Two slots need the parameters of different units at once, and one may free what the other still reads.
void StepBuilder::refuse_gather_of_pair(const HookAction& action) const {
  if (action.keep) return;
  throw plan_error(
      fmt::format("prun.both runs two slots at once, and this gathers and frees the parameters of each: keep "
                  "them (reshard_after_forward = false), or shard with zero1 or zero2 (the schedule '{}')",
                  state_.plan.pipeline->schedule),
      action.site);
}

}  // namespace prun
