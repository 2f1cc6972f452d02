// Emits the ops of a body: labels them with unit, phase, microbatch and line, knows the tensor of each value, and
// numbers the lanes of communication. The edges come from EdgeBuilder.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compile/compile_state.h"
#include "compile/edge_builder.h"

namespace prun {

// The lanes of messages between two ranks, behind those that carry the names of streams and axes.
enum class MessageLane : int { forward = 32, backward, tied, ring };

class OpEmitter : public EdgeBuilder {
 public:
  // `body`: of state.program.
  OpEmitter(CompileState& state, Body& body);

  // An op of a schedule step: of its unit, or the one named, in its phase and microbatch.
  Op op(const OpDef& def, std::vector<TensorId> reads, std::vector<TensorId> writes, const ScheduleStep& step,
        const Site& site, UnitId unit = {}) const;
  // The op that a hook's action asks for.
  Op op(const OpDef& def, TensorId read, TensorId write, const HookAction& action, const ScheduleStep& step) const;
  void compute(Op op) { append(0, std::move(op), std::exchange(compute_floors_, {})); }
  // The next op that computes waits for these.
  void compute_after(std::vector<OpRef> floors) { compute_floors_ = std::move(floors); }
  // Calls EdgeBuilder::communicate with the op on the lane of that stream.
  void communicate(const std::string& stream, Op op);
  // into += what.
  void add_in_place(TensorId into, TensorId what, const ScheduleStep& step, const Site& site, StreamId stream = 0);
  // A collective that a hook's action asks for, in the dtype that it wants on the wire; casts around it as needed.
  void communicate_over_wire(const OpDef& def, TensorId from, TensorId to, const HookAction& action,
                             const ScheduleStep& step, UnitId unit);

  // "name#3" where a step has several microbatches.
  std::string name_of(const std::string& name, int microbatch) const;
  TensorId activation(const std::string& name, TensorType type, const Site& site);
  // A new activation for the value; scratch of its op where nobody wants it.
  TensorId activation(const Value& value, int microbatch);
  TensorId& tensor_of(ValueId value, int microbatch) { return tensor_of_[microbatch][value]; }
  // As tensor_of, of a value that has been written.
  TensorId input_of(ValueId value, int microbatch);
  // The part of a unit's flat vector that is one of its parameters, or the parameter's gradient.
  TensorId parameter_view(UnitId unit, int parameter, TensorId flat, const std::string& name);

  // The pool of that name, with at least so many slots.
  int pool_of(const std::string& name, Role role, int64_t slots);
  // Slots are handed out in turn.
  int next_slot(int pool) { return slot_counter_[pool]++ % program_.pools[pool].slots; }
  // As next_slot; `holder` says what still holds a slot, "" when nothing does: then `what` is refused.
  int claim_slot(int pool, const std::string& what, const Site& site,
                 const std::function<std::string(int slot)>& holder);
  // The buffer takes a slot over from its last occupant.
  void enter_pool(BufferId buffer, int pool, int slot);

 private:
  void cast(TensorId from, TensorId to, const HookAction& action, const ScheduleStep& step, StreamId stream);

  CompileState& state_;
  Program& program_;
  std::map<std::string, int> lanes_;                             // by name of stream
  std::vector<Table<ValueId, TensorId>> tensor_of_;              // by microbatch
  std::map<std::tuple<UnitId, int, TensorId>, TensorId> views_;  // (unit, parameter, flat vector) -> view
  std::map<std::string, int> pool_index_;
  std::map<int, int> slot_counter_;                   // pool -> slots handed out
  std::map<std::pair<int, int>, BufferId> occupant_;  // (pool, slot)
  std::vector<OpRef> compute_floors_;
};

}  // namespace prun
