// The whole parameters of sharded units: gathered, read, freed, as the strategies' hooks ask.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "compile/gathers_ahead.h"
#include "compile/op_emitter.h"
#include "compile/step_index.h"

namespace prun {

class GatheredParameters {
 public:
  // `trains`: the body is the step.
  GatheredParameters(CompileState& state, OpEmitter& emitter, const StepIndex& index, bool trains)
      : state_(state),
        emitter_(emitter),
        index_(index),
        ahead_(state, emitter, trains),
        of_caller_(state.graph.units.size()),
        live_of_(state.graph.units.size()) {}

  void gather(const ScheduleStep& step, int strategy, const HookAction& action);
  // `next`: what this rank computes after the step; null: nothing.
  void free(const ScheduleStep& step, int strategy, const HookAction& action, const ScheduleStep* next);
  // The tensor that a node reads as its parameter; throws when it is sharded and not gathered.
  TensorId parameter(ValueId value, const OpDef& reader, const Site& site);
  // At the end of the body.
  void finish() { ahead_.finish(); }

 private:
  struct Gathered {
    int strategy, handle;
    CallId call;
    int microbatch;
    std::string wire;
    bool keep;  // until the last microbatch, in memory of its own
    Site site;
    int pool = -1, slot = -1;
    std::map<UnitId, TensorId> full;  // over each unit's whole flat vector
    bool live = true;
    Site freed;
  };
  void enter(Gathered g);
  // What lies in the slot that `g` gets, where it is what `g` is to be; null: something else.
  const Gathered* still_there(const Gathered& g, const std::vector<UnitId>& units) const;
  std::vector<Gathered*> live(const ScheduleStep& step, int strategy, int handle);
  [[noreturn]] void not_gathered(const Value& parameter, const OpDef& reader, const Site& site) const;

  CompileState& state_;
  OpEmitter& emitter_;
  const StepIndex& index_;
  GathersAhead ahead_;
  std::vector<Gathered> gathered_;
  std::map<std::pair<int, int>, int> holder_;  // (pool, slot) -> the last one there
  Table<UnitId, std::vector<int>> of_caller_;  // by the unit for whose call they were gathered: those that are live
  Table<UnitId, std::vector<int>> live_of_;    // by unit whose parameters they hold: those that are live
};

}  // namespace prun
