// What the passes hand to each other: the plan, and the program as far as it has come.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compile/compile.h"
#include "compile/shorten.h"
#include "compile/strategy_index.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

// How a unit's parameters lie in one flat vector: in the order in which backward finishes their gradients (the last
// used first), each on a cache line. The same layout serves parameters, gradients and optimizer state.
struct UnitLayout {
  std::vector<int64_t> start;  // element of each parameter, as Unit::parameters
  int64_t elements = 0;        // up to the end of the last one
  int64_t padded = 0;          // what the flat vector holds: a multiple of ranks x cache line when sharded
};

// Where a unit's persistent state lives; tensor ids, -1 = none.
struct UnitStorage {
  bool here = true;  // on this rank of the pipeline
  bool sharded = false;
  std::string axis;     // of the shards
  int64_t shard = 0;    // elements a rank owns (padded when not sharded)
  TensorId master;      // parameters the optimizer updates (f32, or f64 in an f64 plan): the shard, or all
  TensorId compute;     // parameters in the dtype of compute, when that is another; of a shard only beside an
                        // offloaded master, and where one rank has all shards
  TensorId grad;        // the gradient the optimizer reads: the shard, or all
  TensorId whole_grad;  // sharded, and microbatches are summed before they are reduced: the sum; `grad` where one
                        // rank has all shards
  std::vector<TensorId> optimizer;        // sgd: momentum; adamw: m, v
  std::vector<TensorId> staged;           // copies of master and optimizer in the host's memory, for a checkpoint
  const StrategyUnit* offload = nullptr;  // where it says that optimizer state lives in the host's memory
  bool master_offloaded = false;
  int64_t bucket_start = 0;  // not sharded: where the unit's gradient starts in the flat buffer of all

  // What forward and backward read, or gather: in the dtype of compute.
  TensorId read() const { return !compute.none() ? compute : master; }
  // Whether the sum over microbatches is a tensor beside the gradient.
  bool has_own_sum() const { return !whole_grad.none() && whole_grad != grad; }
  // From microbatch to microbatch; else it goes to a bucket, and its shard is kept.
  bool keeps_whole_gradient() const { return !sharded || !whole_grad.none(); }
};

// Backward as a whole, or one of its halves: gradients of what came in, gradients of parameters.
enum class Half : uint8_t { whole, input, weight };

// One call in one phase for one microbatch.
struct ScheduleStep {
  Phase phase = Phase::forward;
  CallId call = 0;
  int microbatch = 0;
  Half half = Half::whole;
};

// The calls of one stage, one after another: what a pipeline schedules. Without a pipeline everything is stage 0.
struct StageStep {
  int stage = 0;
  std::vector<ScheduleStep> calls;
  const ScheduleStep& front() const { return calls.front(); }
};

// Parameters that a step finds gathered, since the step before, or init, has left them so (gathers_ahead.h).
struct GatherAhead {
  int strategy = 0;
  const HookAction* action = nullptr;
  CallId call;
  std::vector<UnitId> units;
  int pool = -1, slot = -1;     // -1: in memory of its own
  TensorId full;                // over all of them
  std::vector<TensorId> parts;  // over each unit's flat vector
};

// Ranks along the pipeline's axis and stages; 1 and 1 without a pipeline.
int pipeline_ranks(const Plan& plan);
int pipeline_stages(const Plan& plan);
std::vector<std::string> optimizer_slots(const Optimizer& optimizer);  // "adamw.m"
int rank_of_stage(const Plan& plan, int stage);
int stage_of_chunk(const Plan& plan, int rank, int chunk);

// Thrown by a pass that finds that a shortened schedule cannot be written as one that repeats; never leaves compile().
struct DoesNotRecur {
  std::string what;
};

// One class of ranks on its way to a program. The passes up to `differentiate` are the same for all of a pipeline's
// ranks.
struct CompileState {
  CompileState(const Plan& the_plan, const CompileOptions& the_options, const StrategyIndex& the_strategies)
      : plan(the_plan), options(the_options), strategies(the_strategies) {}

  const Plan& plan;
  const CompileOptions& options;
  const StrategyIndex& strategies;
  const Shortened* shortened = nullptr;  // `plan` is its plan; null: the schedule is compiled as it is
  Job* job = nullptr;                    // the programs of the classes that are done
  int pipeline_rank = 0;
  const RankProgram* source = nullptr;  // level 3: the ops as the plan lists them
  Graph graph;                          // of all stages; grows gradients
  std::vector<Node> backward;           // in execution order
  std::map<ValueId, ValueId>
      global_counts;  // experts' loads of this rank -> of all ranks, for the gradient of the balancing loss
  Table<ValueId, ValueId> parameter_grad;  // by value id: the value that is the parameter's whole gradient, -1 none
  Table<UnitId, UnitLayout> layouts;
  Table<UnitId, UnitStorage> storage;
  std::vector<StageStep> steps;  // of this rank, in the order in which the compute stream runs them
  std::string data_axes;         // the axes over which the batch is split, as next_batch has them
  int data_ranks = 1;
  std::vector<std::string> loss_axes;  // axes over which the loss is averaged
  TensorId loss_tensor;                // local loss, then global
  std::vector<GatherAhead> ahead;      // what the step defines so
  TensorId flat_params;                // the parameters of all units that are not sharded
  TensorId flat_grads;                 // the gradients of all units that are not sharded
  Program program;

  // Of a step, also those that a repeat stands for.
  int64_t microbatches() const { return plan.microbatches + (shortened ? shortened->left_out() : 0); }
  Dtype master_dtype() const { return plan.param_dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32; }
  UnitId unit_of(const ScheduleStep& step) const { return graph.calls[step.call].unit; }
  // The axis over which ranks hold different shards of the unit; "": each has all of it.
  std::string shard_axis(UnitId unit) const {
    const UnitStorage& of = storage[unit];
    return of.sharded && plan.mesh.size(of.axis) > 1 ? of.axis : "";
  }
  const std::string& unit_name(UnitId unit) const { return graph.units[unit].name; }
  bool is_here(CallId call) const { return rank_of_stage(plan, graph.calls[call].stage) == pipeline_rank; }
  // Whether this rank updates parameters of the unit.
  bool trains(UnitId unit) const { return storage[unit].here && !graph.units[unit].parameters.empty(); }
};

// Of a cross_entropy_and_grad: the loss only (fuse_loss.cc).
Node without_gradient(const Node& loss);

// What the schedule runs, one line a stage step (schedule.cc).
std::string schedule_text(const CompileState& state);

// The passes, in the order of pipeline.cc.
void pad_vocabulary(CompileState& state);  // pad_vocabulary.cc: columns of logits to a multiple
void find_data_axes(CompileState& state);  // data_axes.cc
void partition(CompileState& state);       // partition.cc: calls to stages
void distribute(CompileState& state);      // distribute.cc: whole shapes -> one rank's, collectives of activations
void differentiate(CompileState& state);   // autodiff.cc: backward nodes
void overlap_dw(CompileState& state);      // overlap_dw.cc: dw behind the reduction of dx
void fuse(CompileState& state);            // fuse.cc: two ops that are one on the device
void fuse_losses(CompileState& state);     // fuse_loss.cc: a loss and the gradient of its logits as one op
void place(CompileState& state);           // place.cc: layouts, persistent buffers, loss scale, init body
void schedule(CompileState& state);        // schedule.cc: the order of schedule steps
void build_step(CompileState& state);      // step_builder.cc: compute ops, what hooks asked for, optimizer, edges
void evaluate(CompileState& state);        // evaluate.cc: forward on data of its own
void synchronize(CompileState& state);     // synchronize.cc: the average of weights that ranks let drift apart
void check_replicas(CompileState& state);  // check_replicas.cc: --check-replicas
void report(CompileState& state);          // report.cc: norms of units
void checkpoint(CompileState& state);      // checkpoint.cc: the state to the host's memory, and on to the disk
void describe_state(CompileState& state);  // checkpoint.cc: called by place
void lower_program(CompileState& state);   // lower_program.cc: level 3
void check_finite(CompileState& state);    // check_finite.cc: --check-finite
void widen(CompileState& state);           // widen.cc: floats as f64, for proofs
void add_workspaces(Program& program, const CompileOptions& options);  // workspace.cc: scratch of kernels
// step_barrier.cc: streams meet at the end of a step; `carries`: but for the gathers of the next one
void add_step_barrier(Program& program, bool carries);
void describe_repeat(CompileState& state);  // describe_repeat.cc: what of a step that repeats is whose microbatch's
void assign_memory(Program& program);       // memory.cc: offsets
void count_memory(Program& program);        // memory.cc: about as much, without offsets
void resolve_put_offsets(Job& job);         // resolve_put_offsets.cc: places of puts in other ranks' arenas

// Aborts with the pass's name when the graph or the program that it made is not well-formed. Verify proves what a
// finished program means; this finds the pass that broke it.
void check_invariants(const CompileState& state, std::string_view pass);

}  // namespace prun
