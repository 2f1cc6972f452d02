// Which nodes a schedule step computes, and which steps of a call are its first and its last.
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
  // Whether the backward node makes nothing but gradients of parameters.
  bool for_weights(const Node& node) const { return for_weights_[&node - state_.backward.data()]; }
  // Whether backward computes the step's activations once more.
  bool recomputes_whole(const ScheduleStep& step) const { return state_.strategies.of(unit(step)).recompute_whole; }
  bool recomputes(const ScheduleStep& step) const { return state_.strategies.of(unit(step)).recompute; }
  // The forward nodes of a call that `wanted` values come from, in their order, as far as `again` takes them.
  std::vector<const Node*> forward_of(
      CallId call, std::set<ValueId> wanted,
      const std::function<bool(const Node&, const std::set<ValueId>& wanted)>& again) const;
  // Returns the forward nodes that backward recomputes because it needs their results. Statistics are small, so they
  // are retained instead.
  std::vector<const Node*> recomputed(CallId call) const;
  // Returns all nodes that backward runs again; with `whole` also nodes whose results it does not need.
  std::vector<const Node*> run_again(const ScheduleStep& step) const;
  // Whether backward gathers again what forward gathered, of inputs of nodes.
  bool gathers_again(CallId call) const { return gathers_again_[call] != 0; }
  // The sharded units whose parameters the step's nodes read; a call with tied weights reads another unit's too.
  std::vector<UnitId> sharded_units_read(const ScheduleStep& step) const;

  // Among all steps that go backward through the call; gradients of parameters come with the weights' half, or the
  // input's.
  bool is_first(const ScheduleStep& step, bool weights) const {
    return step.microbatch == microbatches_.at({step.call, weights}).first;
  }
  bool is_first(const ScheduleStep& step) const { return is_first(step, step.half != Half::input); }
  bool is_last(const ScheduleStep& step) const {
    return step.microbatch == microbatches_.at({step.call, step.half != Half::input}).second;
  }
  // The unit's first call: the last one to go backward, so that gradients of tied weights are whole after it.
  CallId first_call(UnitId unit) const { return first_call_[unit]; }
  bool is_first_call(const ScheduleStep& step) const { return step.call == first_call(state_.unit_of(step)); }
  // A unit and those that hold the parameters that it keeps apart.
  const std::vector<UnitId>& parts_of(UnitId unit) const { return parts_[unit]; }

 private:
  const Unit& unit(const ScheduleStep& step) const { return state_.graph.units[state_.unit_of(step)]; }

  const CompileState& state_;
  Table<CallId, std::vector<const Node*>> forward_, backward_;
  Table<CallId, char> gathers_again_;
  std::set<const Node*> sums_of_loads_;  // nodes that sum experts' loads over ranks for backward alone
  Table<UnitId, CallId> first_call_;
  Table<UnitId, std::vector<UnitId>> parts_;
  std::vector<bool> for_weights_;  // by backward node
  // First and last microbatch of a backward call, of the weights' half (true) or the input's; a whole step is both.
  std::map<std::pair<CallId, bool>, std::pair<int, int>> microbatches_;
};

// Splits backward in two halves: for each node whether it belongs to the half of the weights (split_backward.cc).
std::vector<bool> split_backward(const Graph& graph, const std::vector<Node>& backward);

}  // namespace prun
