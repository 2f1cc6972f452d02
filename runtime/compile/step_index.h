// Nodes of each schedule step, and the first and last steps of each call.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "compile/compile_state.h"

namespace prun {

class StepIndex {
 public:
  explicit StepIndex(const CompileState& state);

  const std::vector<const Node*>& forward(CallId call) const { return forward_[call]; }
  const std::vector<const Node*>& backward(CallId call) const { return backward_[call]; }
  std::vector<const Node*> nodes_of(const ScheduleStep& step) const;
  // Returns whether the backward node computes only gradients of parameters.
  bool for_weights(const Node& node) const { return for_weights_[&node - state_.backward.data()]; }
  // Return whether backward recomputes the step's activations; `recomputes_whole`: also activations that backward does
  // not need.
  bool recomputes_whole(const ScheduleStep& step) const { return state_.strategies.of(unit(step)).recompute_whole; }
  bool recomputes(const ScheduleStep& step) const {
    const int stage = state_.graph.calls[step.call].stage;
    return state_.strategies.of(unit(step)).recomputes(stage) && !backward_[step.call].empty();
  }
  // Returns the forward nodes of a call, in order, that the given values depend on; stops at nodes that `again`
  // rejects.
  std::vector<const Node*> forward_of(
      CallId call, std::set<ValueId> wanted,
      const std::function<bool(const Node&, const std::set<ValueId>& wanted)>& again) const;
  // Returns the forward nodes that backward recomputes because it needs their results. Statistics are small, so they
  // are retained instead.
  std::vector<const Node*> recomputed(CallId call) const;
  // Returns all nodes that backward runs again; with `whole` also nodes whose results it does not need.
  std::vector<const Node*> run_again(const ScheduleStep& step) const;
  // Returns whether backward repeats a forward gather of the call's inputs.
  bool gathers_again(CallId call) const { return gathers_again_[call] != 0; }
  // Returns the sharded units whose parameters the step's nodes read; a call with tied weights also reads another unit.
  std::vector<UnitId> sharded_units_read(const ScheduleStep& step) const;

  // Return whether the step's microbatch is the first, or last, to run this half of the call's backward: the weight
  // half, which computes gradients of parameters, or the input half.
  bool is_first(const ScheduleStep& step, bool weights) const {
    return step.microbatch == microbatches_.at({step.call, weights}).first;
  }
  bool is_first(const ScheduleStep& step) const { return is_first(step, step.half != Half::input); }
  bool is_last(const ScheduleStep& step) const {
    return step.microbatch == microbatches_.at({step.call, step.half != Half::input}).second;
  }
  // Returns whether the reshape's output is an alias of its input. If the input has other readers, no op may overwrite
  // either, and the axes must split the same dim of both.
  bool aliases(const Node& reshape) const { return aliases_.contains(&reshape); }
  // Returns the unit's first call, whose backward is last, so that gradients of tied weights are whole after it.
  CallId first_call(UnitId unit) const { return first_call_[unit]; }
  bool is_first_call(const ScheduleStep& step) const { return step.call == first_call(state_.unit_of(step)); }
  // Returns the unit and the parts that place has separated from it.
  const std::vector<UnitId>& parts_of(UnitId unit) const { return parts_[unit]; }

 private:
  void find_aliases();
  const Unit& unit(const ScheduleStep& step) const { return state_.graph.units[state_.unit_of(step)]; }

  const CompileState& state_;
  Table<CallId, std::vector<const Node*>> forward_, backward_;
  Table<CallId, char> gathers_again_;
  std::set<const Node*> aliases_;       // reshapes whose output is their input's memory
  std::set<const Node*> kept_results_;  // nodes that run once, see CompileState
  Table<UnitId, CallId> first_call_;
  Table<UnitId, std::vector<UnitId>> parts_;
  std::vector<bool> for_weights_;  // by index in backward
  // First and last microbatch of a backward call, of its weight half (true) or input half; an unsplit step is both.
  std::map<std::pair<CallId, bool>, std::pair<int, int>> microbatches_;
};

// Returns for each backward node whether it belongs to the weight half (split_backward.cc).
std::vector<bool> split_backward(const Graph& graph, const std::vector<Node>& backward);

}  // namespace prun
