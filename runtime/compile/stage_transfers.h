// What crosses the borders between the stages of a pipeline: activations forward, their gradients backward, and at the
// end of a step the gradients of tied weights.
#pragma once
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "compile/op_emitter.h"
#include "compile/step_index.h"

namespace prun {

// Does nothing without a pipeline.
class StageTransfers {
 public:
  StageTransfers(CompileState& state, OpEmitter& emitter);
  // What the stage's calls read from the stage before (backward: behind).
  void receive(const StageStep& step) { cross(step, false); }
  void send(const StageStep& step);
  // What has gone before the next turn of an evaluation computes, so that memory does not grow with its microbatches.
  std::vector<OpRef> gone() const;
  void exchange_tied_gradients(const StepIndex& index);

 private:
  void find_crossings();
  void cross(const StageStep& step, bool sends);
  void transfer(bool sends, const StageStep& step, ValueId value, int64_t tag);
  int rank_of(UnitId unit, const StepIndex& index) const;
  void exchange(UnitId here, const std::vector<UnitId>& twins, const StepIndex& index);
  std::optional<OpRef> used_before(const StageStep& step, int other_stage) const;

  CompileState& state_;
  OpEmitter& emitter_;
  std::vector<std::vector<ValueId>> forward_, backward_;  // by lower stage of the border: the values that cross it
  std::map<std::tuple<Phase, int, int>, OpRef> sent_;     // by phase, stage and microbatch: the last send
  std::vector<std::optional<OpRef>> sent_by_turn_;        // the last send up to each turn
  bool in_step_ = true;                                   // ranks take the same forward turns in the same order
};

}  // namespace prun
