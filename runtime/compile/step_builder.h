// Builds the step: walks the turns, lowers their nodes to ops on the compute stream and carries out what the
// strategies' hooks intended before and after them.
//
// Everything is recorded in the order that gives the step its meaning; EdgeBuilder turns that into edges.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "compile/compile_state.h"
#include "compile/edge_builder.h"

namespace prun {

class StepBuilder {
 public:
  // `body`: the state's step, or its eval.
  StepBuilder(CompileState& state, Body& body);
  void run();
  void run_forward();  // evaluate.cc

 private:
  // communicate.cc
  void name_lanes();
  void communicate_on(const std::string& stream, Op op);
  void index_turns();
  void walk_turns();
  void next_batch();
  void turn(const ScheduleStep& turn);
  void hooks(const ScheduleStep& turn, bool after);
  void apply(const ScheduleStep& turn, int strategy, const HookAction& action);
  void lower(const Node& node, const ScheduleStep& turn);
  void lower_ring(const Node& node, const ScheduleStep& turn);
  void add_in_place(TensorId into, TensorId what, const ScheduleStep& turn, int stream, const Site& site);
  void take_early_gradients(const ScheduleStep& turn);
  CallId first_call(UnitId unit) const;
  bool here(CallId call) const {
    return rank_of_stage(state_.plan, state_.graph.calls[call].stage) == state_.pipeline_rank;
  }
  // Of all turns that go backward through the call; gradients of parameters come with the weights' half, or the
  // input's.
  bool is_first(const ScheduleStep& turn, bool weights) const {
    return turn.microbatch == first_microbatch_.at({turn.call, weights});
  }
  bool is_first(const ScheduleStep& turn) const { return is_first(turn, turn.half != Half::input); }
  bool is_last(const ScheduleStep& turn) const {
    return turn.microbatch == last_microbatch_.at({turn.call, turn.half != Half::input});
  }
  std::vector<UnitId> parts_of(UnitId unit) const;
  void average_loss();
  std::string gradient_stream() const;
  void print(const ScheduleStep& turn, const HookAction& action);
  const std::string& unit_name(UnitId unit) const { return state_.graph.units[unit].name; }
  UnitId unit_of(const ScheduleStep& turn) const { return state_.graph.calls[turn.call].unit; }
  std::vector<const Node*> nodes_of(const ScheduleStep& turn) const;
  TensorId& tensor_of(ValueId value) { return tensor_of_[microbatch_][value]; }
  std::string microbatch_name(const std::string& name) const;
  Op communication(const OpDef& kind, const HookAction& action, const ScheduleStep& turn, TensorId read,
                   TensorId write) const;
  TensorId input_of(int value);

  // recompute.cc: activations that backward computes again
  bool recomputes(const ScheduleStep& turn) const;
  void recompute(const ScheduleStep& turn);
  void gather_again(const Node& node, const std::vector<const Node*>& nodes, const ScheduleStep& turn);
  std::vector<const Node*> forward_of(CallId call, std::set<int> wanted,
                                      const std::function<bool(const Node&)>& again) const;

  // halves.cc: which backward nodes are for parameters only
  void split_backward();

  // transfers.cc: values that cross the borders of stages
  void find_crossings();
  void receive(const StageStep& turn);
  void send(const StageStep& turn);
  void transfer(bool sends, const StageStep& turn, int value, int64_t tag);
  std::optional<OpRef> used_before(const StageStep& turn, int other_stage) const;
  void exchange_tied_gradients();

  // gathers.cc: full parameters of sharded units
  struct Gathered {
    int strategy, handle;
    CallId call;
    int pool, slot;
    BufferId buffer;                  // pool -1: memory of its own
    std::map<UnitId, TensorId> full;  // unit -> tensor over its whole flat vector
    bool live = true, keep = false;   // keep: until the last microbatch
    Site site, freed;
  };
  void gather(const ScheduleStep& turn, int strategy, const HookAction& action);
  void free_gathered(const ScheduleStep& turn, int strategy, const HookAction& action);
  Gathered* find_live(int strategy, int handle, UnitId unit);
  TensorId parameter(ValueId value, const Node& reader);
  [[noreturn]] void not_gathered(const Value& parameter, const Node& reader, const Site& freed) const;
  std::vector<UnitId> units_read(const ScheduleStep& turn) const;
  int claim_slot(int pool, const std::string& what, const Site& site,
                 bool (StepBuilder::*busy)(int pool, int slot, std::string& holder));
  bool gather_slot_busy(int pool, int slot, std::string& holder);
  int pool_of(const std::string& name, Role role, int slots);
  void enter_pool(BufferId buffer, int pool, int slot);
  TensorId cast(TensorId tensor, Dtype dtype, const std::string& name, const HookAction& action,
                const ScheduleStep& turn, int stream);
  void cast_into(TensorId from, TensorId to, const HookAction& action, const ScheduleStep& turn, int stream);

  // gradients.cc
  struct Bucket {  // unreduced gradient of a sharded unit
    BufferId buffer;
    TensorId flat;
    int pool = -1, slot = -1, microbatch = -1;
    bool reduced = false;
  };
  struct PendingReduce {  // consecutive gradients of units that are not sharded, waiting for their bucket to fill
    int64_t first = -1, end = 0;  // elements of the flat gradient buffer
    int buckets = 0;
    HookAction action;
    ScheduleStep turn;
  };
  TensorId gradient_tensor(UnitId unit, size_t parameter, const ScheduleStep& turn);
  TensorId whole_gradient_of(UnitId unit, const ScheduleStep& turn);
  void sum_partial_gradients(const ScheduleStep& turn);
  void scale_split_gradients(UnitId unit, const ScheduleStep& turn, const HookAction& action);
  void open_bucket(UnitId unit, const ScheduleStep& turn);
  void reduce(const ScheduleStep& turn, int strategy, const HookAction& action);
  void reduce_scatter(const ScheduleStep& turn, UnitId unit, const HookAction& action);
  void all_reduce(const ScheduleStep& turn, UnitId unit, int strategy, const HookAction& action);
  void all_reduce_shard(const ScheduleStep& turn, UnitId unit, int strategy, const HookAction& action);
  void reduce_over_wire(const OpDef& kind, TensorId from, TensorId to, const HookAction& action,
                        const ScheduleStep& turn);
  void flush(int strategy, bool all);
  void emit_all_reduce(PendingReduce& pending, int64_t end);
  void require_gradients(UnitId unit, const ScheduleStep& turn, const HookAction& action);
  bool leaves_small_ones(UnitId unit) const;
  void reduced_once(UnitId unit, const HookAction& action);
  void zero_missing_gradients(const ScheduleStep& turn);
  void zero_gaps(UnitId unit, TensorId flat, const ScheduleStep& turn, const Site& site);
  void require_reduced();
  bool bucket_slot_busy(int pool, int slot, std::string& holder);

  // optimize.cc
  struct Squares {
    std::vector<TensorId> tensors;
    std::vector<double> weights;
    std::vector<int64_t> starts;
  };
  void optimize();
  std::vector<std::string> split_axes() const;
  Squares squares_of(UnitId unit, const std::vector<std::string>& split);
  TensorId clip_coefficient();
  struct Updated {
    TensorId grad, master;
    std::vector<TensorId> states;
    TensorId compute;  // -1: parameters have the master's dtype
  };
  void update(UnitId unit, TensorId clip, const Updated& what);

  // offload.cc: optimizer state that lives in the host's memory
  void update_offloaded(UnitId unit, TensorId clip, bool last);
  void transfer(const OpDef& kind, TensorId from, TensorId to, int stream, UnitId unit);

  TensorId compute_tensor(const std::string& name, TensorType type, const Site& site);

  CompileState& state_;
  Program& program_;
  Body& body_;
  bool evaluates_;
  EdgeBuilder recorder_;
  std::map<std::string, int> lanes_;                 // by name of stream
  int microbatch_ = 0;                               // under way
  const ScheduleStep* next_ = nullptr;               // what this rank computes after the turn under way; null: nothing
  std::vector<Table<ValueId, TensorId>> tensor_of_;  // by microbatch and value
  Table<CallId, std::vector<const Node*>> forward_, backward_;  // by call
  std::set<std::pair<const Node*, int>> gathered_again_;        // forward nodes, with the microbatch
  std::vector<bool> for_weights_;  // by backward node: only gradients of parameters need it
  // By backward call, of the weights' half (true) or the input's; a whole turn counts as both.
  std::map<std::pair<CallId, bool>, int> first_microbatch_, last_microbatch_;
  bool loss_begun_ = false;  // a microbatch has written the step's loss: the next ones add theirs
  std::vector<std::vector<ValueId>> forward_crossings_, backward_crossings_;  // by lower stage of the border: values
  std::map<std::tuple<Phase, int, int>, OpRef> sent_;  // by phase, stage and microbatch: the last send over the border
  std::map<ValueId, std::pair<UnitId, size_t>> whole_gradient_;  // value -> (unit, parameter index)
  struct EarlyGradient {
    UnitId unit;
    size_t parameter;
    TensorId tensor;
  };
  std::map<std::pair<CallId, int>, std::vector<EarlyGradient>> early_gradients_;  // by call and microbatch
  std::vector<Gathered> gathered_;
  std::map<int, int> slot_counter_;              // pool -> slots handed out
  std::map<std::pair<int, int>, int> occupant_;  // (pool, slot) -> buffer
  std::map<std::string, int> pool_index_;
  std::map<std::tuple<UnitId, size_t, TensorId>, TensorId> views_;  // (unit, parameter, of tensor) -> tensor
  Table<UnitId, Bucket> buckets_;                                   // by unit
  std::map<int, PendingReduce> pending_;                            // by strategy
  Table<UnitId, std::vector<std::string>> reduced_over_;            // by unit: axes
};

}  // namespace prun
