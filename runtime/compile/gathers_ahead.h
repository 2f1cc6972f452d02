// The first gathers of a step stand at the end of the step before: behind the updates of other units, not before the
// first op that computes.
//
// Surprising fact: such a buffer persists and lies in a slot of a pool all the same. Between its last reader in a step
// and the gather at the step's end other units have the slot, so it costs no memory.
#pragma once
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "compile/op_emitter.h"

namespace prun {

class GathersAhead {
 public:
  struct Wanted {
    int strategy;
    const HookAction* action;
    ScheduleStep step;
    const std::vector<UnitId>& units;
    int pool, slot;  // -1: in memory of its own
  };

  // `defines`: the body is the step, which says which gathers these are; others find and leave them as it does.
  GathersAhead(CompileState& state, OpEmitter& emitter, bool defines)
      : state_(state), emitter_(emitter), defines_(defines), used_(state.ahead.size()), gone_(state.ahead.size()) {}
  // What the step before has left of what is wanted; null: nothing, it has to be gathered.
  const GatherAhead* find(const Wanted& wanted);
  // At the end of a body: leaves for the next step what its updates or others in the slots have made stale.
  void finish();

 private:
  bool can_define(const Wanted& wanted) const;
  void define(const Wanted& wanted);
  void gather(const GatherAhead& ahead);
  void copy_to_init(const Op& op);

  CompileState& state_;
  OpEmitter& emitter_;
  const bool defines_;
  std::vector<bool> used_, gone_;          // of state.ahead: read in this body; another has its slot
  std::set<std::pair<int, int>> claimed_;  // (pool, slot) that another gather has had
  std::map<TensorId, TensorId> init_temporaries_;
};

}  // namespace prun
