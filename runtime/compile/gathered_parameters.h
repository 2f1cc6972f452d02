// Whole parameters of sharded units: gathers, reads and frees them as the strategies' hooks request. If several axes
// shard a unit, a gather over one of them makes larger pieces, which the gather over the next axis reads.
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
  // `next`: this rank's next schedule step; null = none.
  void free(const ScheduleStep& step, int strategy, const HookAction& action, const ScheduleStep* next);
  // Returns the tensor that a node reads as its parameter; throws plan_error if it is sharded and not gathered.
  TensorId parameter(ValueId value, const OpDef& reader, const Site& site);
  // Called at the end of the body.
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
    std::map<UnitId, TensorId> full;  // each unit's flat vector: whole, or a piece if more axes shard it
    int axes = 0;                     // number of axes gathered so far
    bool live = true;
    Site freed;
  };
  // A unit's vector that a gather reads, and the size of its result.
  struct Source {
    UnitId unit;
    TensorId from;
    int64_t elements;
  };
  void enter(Gathered g);
  // Returns what the gather reads of each unit, and sets g.axes. Throws plan_error if the action cannot gather it.
  std::vector<Source> sources_of(const ScheduleStep& step, int strategy, const HookAction& action,
                                 const std::vector<UnitId>& units, Gathered& g);
  bool is_whole(UnitId unit, int axes) const;  // after gathers over so many axes
  // Returns the gather whose result is in g's slot if it equals g's; null = other content.
  const Gathered* still_there(const Gathered& g, const std::vector<UnitId>& units) const;
  std::vector<Gathered*> live(const ScheduleStep& step, int strategy, int handle);
  [[noreturn]] void not_gathered(const Value& parameter, const OpDef& reader, const Site& site) const;

  CompileState& state_;
  OpEmitter& emitter_;
  const StepIndex& index_;
  GathersAhead ahead_;
  std::vector<Gathered> gathered_;
  std::map<std::pair<int, int>, int> holder_;  // (pool, slot) -> its last gather
  Table<UnitId, std::vector<int>> of_caller_;  // live gathers, by the unit whose call requested them
  Table<UnitId, std::vector<int>> live_of_;    // live gathers, by the unit whose parameters they hold
};

}  // namespace prun
