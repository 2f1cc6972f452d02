// Transfers between the stages of a pipeline: activations forward, their gradients backward, and at the end of a step
// the gradients of tied weights.
#pragma once
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "compile/op_emitter.h"
#include "compile/step_index.h"

namespace prun {

// Emits nothing without a pipeline.
class StageTransfers {
 public:
  StageTransfers(CompileState& state, OpEmitter& emitter);
  // Receives the inputs of the stage's calls from the previous stage (in backward, from the next one).
  void receive(const StageStep& step) { cross(step, false); }
  void send(const StageStep& step);
  // Returns sends that complete before the next slot of an evaluation; waiting for them bounds memory.
  std::vector<OpRef> gone() const;
  void exchange_tied_gradients(const StepIndex& index);

 private:
  void find_crossings();
  void cross(const StageStep& step, bool sends);
  void transfer(bool sends, const StageStep& step, ValueId value, int64_t tag);
  int rank_of(UnitId unit, const StepIndex& index) const;
  void exchange(UnitId here, const std::vector<UnitId>& twins, const StepIndex& index);
  const std::vector<std::pair<Phase, int>>& turns_of_stage(int stage);
  std::optional<OpRef> used_before(const StageStep& step, int other_stage);

  CompileState& state_;
  OpEmitter& emitter_;
  std::vector<std::vector<ValueId>> forward_, backward_;              // values that cross a border, by its lower stage
  std::map<std::pair<Phase, int>, std::vector<OpRef>> sent_;          // last sends of a stage, by microbatch; -1 = none
  std::map<int, std::vector<std::pair<Phase, int>>> turns_of_stage_;  // by stage: phase, microbatch
  std::vector<std::optional<OpRef>> sent_by_turn_;                    // last send up to each slot
  bool in_step_ = true;                                               // all ranks have the same order of forward slots
};

}  // namespace prun
