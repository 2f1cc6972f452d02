// Emits the ops of a body: sets their unit, phase, microbatch and source line, maps values to tensors, and numbers the
// lanes of communication. EdgeBuilder adds the edges.
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

// Lanes of point-to-point messages, numbered after those of streams and axes.
enum class MessageLane : int { forward = 32, backward, tied, ring };

class OpEmitter : public EdgeBuilder {
 public:
  // `body` must belong to state.program.
  OpEmitter(CompileState& state, Body& body);

  // Returns an op of a schedule step, in its phase and microbatch, for its unit or `unit`.
  Op op(const OpDef& def, std::vector<TensorId> reads, std::vector<TensorId> writes, const ScheduleStep& step,
        const Site& site, UnitId unit = {}) const;
  // Returns the op that a hook's action requests.
  Op op(const OpDef& def, TensorId read, TensorId write, const HookAction& action, const ScheduleStep& step) const;
  void compute(Op&& op) { append(0, std::move(op), std::exchange(compute_floors_, {})); }
  // Makes the next compute op wait for `floors`.
  void compute_after(std::vector<OpRef> floors) { compute_floors_ = std::move(floors); }
  // Emits the op on the lane of `stream` (EdgeBuilder::communicate).
  void communicate(const std::string& stream, Op&& op);
  // Emits into += what.
  void add_in_place(TensorId into, TensorId what, const ScheduleStep& step, const Site& site, StreamId stream = 0);
  // Emits the collective that a hook's action requests, with casts to and from its wire dtype as needed.
  void communicate_over_wire(const OpDef& def, TensorId from, TensorId to, const HookAction& action,
                             const ScheduleStep& step, UnitId unit);

  // Returns "name#3" if a step has several microbatches, otherwise "name".
  std::string name_of(const std::string& name, int microbatch) const;
  TensorId activation(const std::string& name, TensorType type, const Site& site);
  // Adds an activation for the value; scratch of its op if the value has no readers.
  TensorId activation(const Value& value, int microbatch);
  TensorId& tensor_of(ValueId value, int microbatch) { return tensor_of_[microbatch][value]; }
  // Returns tensor_of a value that must have been written.
  TensorId input_of(ValueId value, int microbatch);
  // Returns the view of one parameter, or of its gradient, in a unit's flat vector.
  TensorId parameter_view(UnitId unit, int parameter, TensorId flat, const std::string& name);

  // Returns the pool of that name, with at least `slots` slots.
  int pool_of(const std::string& name, Role role, int64_t slots);
  // Slots are assigned round-robin.
  int next_slot(int pool) { return slot_counter_[pool]++ % program_.pools[pool].slots; }
  // Returns next_slot; throws plan_error for `what` if `holder` returns the slot's current user instead of "".
  int claim_slot(int pool, const std::string& what, const Site& site,
                 const std::function<std::string(int slot)>& holder);
  // Moves the buffer into a slot; its first accesses wait for the last ones of the previous occupant.
  void enter_pool(BufferId buffer, int pool, int slot);

 private:
  void cast(TensorId from, TensorId to, const HookAction& action, const ScheduleStep& step, StreamId stream);

  CompileState& state_;
  Program& program_;
  std::map<std::string, int> lanes_;                             // by stream name
  std::vector<Table<ValueId, TensorId>> tensor_of_;              // by microbatch
  std::map<std::tuple<UnitId, int, TensorId>, TensorId> views_;  // (unit, parameter, flat vector) -> view
  std::map<std::string, int> pool_index_;
  std::map<int, int> slot_counter_;                   // pool -> slots assigned
  std::map<std::pair<int, int>, BufferId> occupant_;  // (pool, slot)
  std::vector<OpRef> compute_floors_;
};

}  // namespace prun
