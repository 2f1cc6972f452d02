// Moves the first gathers of a step to the end of the previous step, where the updates of other units hide them;
// otherwise the first compute op would wait for them.
//
// Surprising fact: such a buffer is persistent and yet shares a slot of a pool. Other units use the slot between the
// buffer's last reader in a step and the gather at the step's end, so that it costs no memory.
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
    int64_t elements;  // of all units
    int pool, slot;    // -1 = memory of its own
  };

  // `defines`: the body is the step, which selects the gathers; other bodies find them gathered and must restore them.
  GathersAhead(CompileState& state, OpEmitter& emitter, bool defines)
      : state_(state), emitter_(emitter), defines_(defines), used_(state.ahead.size()), gone_(state.ahead.size()) {}
  // Returns the matching gather of the previous step; null = the caller must gather.
  const GatherAhead* find(const Wanted& wanted);
  // Called at the end of a body: repeats the gathers that updates or other users of the slots have invalidated.
  void finish();

 private:
  bool can_define(const Wanted& wanted) const;
  void define(const Wanted& wanted);
  void gather(const GatherAhead& ahead);
  void copy_to_init(const Op& op);

  CompileState& state_;
  OpEmitter& emitter_;
  const bool defines_;
  std::vector<bool> used_, gone_;          // by index in state.ahead: read in this body; its slot was overwritten
  std::set<std::pair<int, int>> claimed_;  // (pool, slot) that an earlier gather has used
  std::map<TensorId, TensorId> init_temporaries_;
};

}  // namespace prun
