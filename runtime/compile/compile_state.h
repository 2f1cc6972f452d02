// State that passes share: the plan, and the program under construction.
#pragma once
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "compile/compile.h"
#include "compile/shorten.h"
#include "compile/strategy_index.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

// Layout of a unit's parameters in one flat vector: in the order in which backward completes their gradients (the
// parameter used last comes first), each aligned to a cache line. Parameters, gradients and optimizer state share it.
struct UnitLayout {
  std::vector<int64_t> start;  // first element of each parameter, indexed as Unit::parameters
  int64_t elements = 0;        // end of the last parameter
  int64_t padded = 0;          // size of the flat vector: a multiple of ranks x cache line if sharded
};

// Location of a unit's persistent state; tensor ids, -1 = none.
struct UnitStorage {
  bool here = true;  // on this rank of the pipeline
  bool sharded = false;
  std::string axis;   // axis of the shards; several as in StrategyUnit::shard_axis
  int64_t shard = 0;  // elements that a rank owns; all of `padded` if not sharded
  TensorId master;    // parameters that the optimizer updates (f32, or f64 in an f64 plan): the shard, or all
  // Parameters in the compute dtype if it differs from the master's; a shard only if the master is offloaded or one
  // rank has all shards.
  TensorId compute;
  TensorId grad;  // the gradient that the optimizer reads: the shard, or all
  // If sharded and accumulated over microbatches before reduction: the accumulated gradient; equals `grad` where one
  // rank has all shards.
  TensorId whole_grad;
  std::vector<TensorId> optimizer;        // sgd: momentum; adamw: m, v; last ema
  std::vector<TensorId> factors;          // adafactor: its part of each vector of means (factored_state.h)
  std::vector<TensorId> staged;           // copies of master, optimizer state and factors in host memory, for a
                                          // checkpoint
  const StrategyUnit* offload = nullptr;  // offloads optimizer state to host memory; null = none
  bool master_offloaded = false;
  int64_t bucket_start = 0;  // first element of an unsharded unit's gradient in the flat buffer of all units

  // Returns the axes of the shards; none if not sharded.
  std::vector<std::string> axes() const { return sharded ? split(axis, ',') : std::vector<std::string>(); }
  bool is_sharded_over(const std::string& name) const { return std::ranges::count(axes(), name) > 0; }
  // Returns the tensors of the unit that checkpoints contain.
  std::vector<TensorId> kept() const {
    std::vector<TensorId> all = {master};
    all.insert(all.end(), optimizer.begin(), optimizer.end());
    all.insert(all.end(), factors.begin(), factors.end());
    return all;
  }
  // Returns the parameters in the compute dtype.
  TensorId read() const { return !compute.none() ? compute : master; }
  // Returns whether gradients accumulate over microbatches in a tensor other than the gradient.
  bool has_own_sum() const { return !whole_grad.none() && whole_grad != grad; }
  // Returns whether the whole gradient persists between microbatches; otherwise it goes to a bucket, and only its shard
  // persists.
  bool keeps_whole_gradient() const { return !sharded || !whole_grad.none(); }
};

// Backward as a whole, or one of its halves: gradients of inputs (dx), gradients of parameters (dw).
enum class Half : uint8_t { whole, input, weight };

// One call in one phase for one microbatch.
struct ScheduleStep {
  Phase phase = Phase::forward;
  CallId call = 0;
  int microbatch = 0;
  Half half = Half::whole;
};

// Consecutive calls of one stage, the unit that a pipeline schedules. Without a pipeline everything is stage 0. An
// empty stage has no calls and only forwards what later stages read.
struct StageStep {
  int stage = 0;
  std::vector<ScheduleStep> calls;
  bool with_next = false;  // its ops and those of the next step alternate
  ScheduleStep forwards;   // of an empty stage: its phase and microbatch, and the call before it in the model
  const ScheduleStep& front() const { return calls.empty() ? forwards : calls.front(); }
  const ScheduleStep& back() const { return calls.empty() ? forwards : calls.back(); }
};

// Parameters that are already gathered when a step begins, by the previous step or by init (gathers_ahead.h).
struct GatherAhead {
  int strategy = 0;
  const HookAction* action = nullptr;
  CallId call;
  std::vector<UnitId> units;
  int pool = -1, slot = -1;     // -1 = memory of its own
  TensorId full;                // spans all units
  std::vector<TensorId> parts;  // each unit's flat vector
};

// Return the number of ranks along the pipeline's axis and of stages; 1 and 1 without a pipeline.
int pipeline_ranks(const Plan& plan);
int pipeline_stages(const Plan& plan);
// Returns the names of the tensors that an optimizer keeps for a parameter: "adamw.m", ...; last "ema", if it has one.
// `ema`: there is a running average, too.
std::vector<std::string> optimizer_slots(const Optimizer& optimizer, bool ema);
int rank_of_stage(const Plan& plan, int stage);
int stage_of_chunk(const Plan& plan, int rank, int chunk);

// Thrown by a pass if a shortened schedule cannot be described as a repeat; never leaves compile().
struct DoesNotRecur {
  std::string what;
};

// A program under construction for one class of ranks. The passes up to `differentiate` are the same for all ranks of a
// pipeline.
struct CompileState {
  CompileState(const Plan& the_plan, const CompileOptions& the_options, const StrategyIndex& the_strategies)
      : plan(the_plan), options(the_options), strategies(the_strategies) {}

  const Plan& plan;
  const CompileOptions& options;
  const StrategyIndex& strategies;
  const Shortened* shortened = nullptr;  // source of `plan`; null: the schedule is compiled in full
  Job* job = nullptr;                    // programs of the classes compiled so far
  int pipeline_rank = 0;
  const RankProgram* source = nullptr;  // level 3: the ops as the plan lists them
  Graph graph;                          // graph of all stages; autodiff adds gradients
  std::vector<Node> backward;           // in execution order
  // Experts' loads of this rank -> of all ranks, for the gradient of the balancing loss.
  std::map<ValueId, ValueId> global_counts;
  // Results that recomputation uses again: of all-reduces, because they are small, and copies of buffers, which the
  // step has updated by then.
  std::set<ValueId> kept_results;
  Table<ValueId, ValueId> parameter_grad;  // the value that holds the parameter's whole gradient; -1 = none
  Table<UnitId, UnitLayout> layouts;
  Table<UnitId, UnitStorage> storage;
  std::vector<StageStep> steps;  // this rank's steps in the order of the compute stream
  std::string data_axes;         // axes that split the batch, as next_batch names them
  int data_ranks = 1;
  std::vector<std::string> loss_axes;  // axes over which the loss is averaged
  TensorId loss_tensor;                // local loss, then global
  TensorId results;                    // the loss and the terms of named numbers, as one vector; -1 = the loss alone
  std::vector<TensorId> term_tensors;  // by term of the graph: its element of `results`; -1 = none
  std::vector<GatherAhead> ahead;      // gathers that the step issues for the next one
  // Tensors that forward reads or gathers instead of a unit's parameters: running averages, in some evaluations.
  std::map<UnitId, TensorId> averages;
  TensorId flat_params;  // parameters of all units that are not sharded
  TensorId flat_grads;   // gradients of all units that are not sharded
  Program program;

  // Returns the tensor that forward and backward read or gather, in the compute dtype.
  TensorId read_of(UnitId unit) const {
    const auto average = averages.find(unit);
    return average != averages.end() ? average->second : storage[unit].read();
  }
  // Returns the number of ranks that divide the samples.
  int64_t sample_ranks() const {
    int64_t ranks = 1;
    for (const std::string& axis : plan.batch_axes) ranks *= plan.mesh.size(axis);
    return ranks;
  }
  // Microbatches per step, including those folded into the repeat.
  int64_t microbatches() const { return plan.microbatches + (shortened ? shortened->left_out() : 0); }
  Dtype master_dtype() const { return plan.param_dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32; }
  UnitId unit_of(const ScheduleStep& step) const { return graph.calls[step.call].unit; }
  // Returns the axis, or axes, over which ranks hold different shards of the unit; "" = each rank holds all of it.
  std::string shard_axis(UnitId unit) const {
    const UnitStorage& of = storage[unit];
    return of.sharded && plan.mesh.size(of.axis) > 1 ? of.axis : "";
  }
  // Returns the tensor that the body's reductions of the loss cover.
  TensorId reduced_results() const { return results.none() ? loss_tensor : results; }
  const std::string& unit_name(UnitId unit) const { return graph.units[unit].name; }
  bool is_here(CallId call) const { return rank_of_stage(plan, graph.calls[call].stage) == pipeline_rank; }
  // Returns whether the unit's parameters are frozen: all of them are or none is, since place.cc has separated them.
  bool is_frozen(UnitId unit) const {
    const std::vector<ValueId>& parameters = graph.units[unit].parameters;
    return !parameters.empty() && graph.values[parameters.front()].frozen;
  }
  // Returns whether the unit's parameters are buffers; all of them are or none is.
  bool holds_buffers(UnitId unit) const {
    const std::vector<ValueId>& parameters = graph.units[unit].parameters;
    return !parameters.empty() && graph.values[parameters.front()].buffer;
  }
  // Returns the optimizer of the unit's parameters, which all have the same.
  const Optimizer& optimizer_of(UnitId unit) const {
    const std::vector<ValueId>& parameters = graph.units[unit].parameters;
    return parameters.empty() ? plan.optimizer : plan.optimizer.of(graph.values[parameters.front()]);
  }
  // Return whether this rank stores parameters of the unit, and whether it updates them.
  bool holds(UnitId unit) const { return storage[unit].here && !graph.units[unit].parameters.empty(); }
  bool trains(UnitId unit) const { return holds(unit) && !is_frozen(unit); }
};

// Returns the op of a cross_entropy_and_grad without the gradient (fuse_loss.cc).
Node without_gradient(const Node& loss);

// Adds the loss of a body, with the terms of the numbers that it names; sets loss_tensor, results and term_tensors
// (results.cc). `body`: the step or an evaluation.
void add_results(CompileState& state, Body& body, const std::string& name, bool persistent, const Site& site);
// Drops nodes that only evaluations need: those of their numbers, and of the values that by_phase has for them.
void drop_evaluated_only(CompileState& state);

// Returns whether an op updates the buffer, and whether a value of the model depends on the phase (buffers.cc).
bool is_updated(const Graph& graph, ValueId buffer);
bool has_phases(const Graph& graph);
// Throws plan_error for a buffer that each microbatch overwrites and none reads.
void require_read_buffers(const CompileState& state);

// Returns the schedule as text, one line per stage step (schedule.cc).
std::string schedule_text(const CompileState& state);

// The passes, in the order of pipeline.cc.
void pad_vocabulary(CompileState& state);    // pad_vocabulary.cc: pads the columns of logits to a multiple
void separate_buffers(CompileState& state);  // buffers.cc: readers of a buffer get its value before the update
void find_data_axes(CompileState& state);    // data_axes.cc
void partition(CompileState& state);         // partition.cc: assigns calls to stages
void distribute(CompileState& state);        // distribute.cc: whole shapes -> local shapes, collectives of activations
void begin_forward(CompileState& state);     // forward.cc: no gradients; the prediction
void differentiate(CompileState& state);     // autodiff.cc: backward nodes
void repeat_rounds(CompileState& state);     // repeat_rounds.cc: backward recomputes rounds of dropless experts
void overlap_dw(CompileState& state);        // overlap_dw.cc: overlaps dw with the reduction of dx
// merge_pointwise.cc: merge chains of elementwise ops, in forward and in backward.
void merge_pointwise(CompileState& state);
void merge_gradients(CompileState& state);
void fuse(CompileState& state);            // fuse.cc: fuses two ops into one kernel of the device
void fuse_losses(CompileState& state);     // fuse_loss.cc: fuses a loss with the gradient of its logits
void elide_views(CompileState& state);     // elide_views.cc: folds views into the ops that read them
void write_parts(CompileState& state);     // write_parts.cc: ops write into concatenations of gradients
void place(CompileState& state);           // place.cc: layouts, persistent buffers, loss scale, init body
void schedule(CompileState& state);        // schedule.cc: the order of schedule steps
void build_step(CompileState& state);      // step_builder.cc: compute ops, ops of hooks, optimizer, edges
void evaluate(CompileState& state);        // evaluate.cc: forward on evaluation data
void synchronize(CompileState& state);     // synchronize.cc: averages weights that drift between ranks
void check_replicas(CompileState& state);  // check_replicas.cc: --check-replicas
void report(CompileState& state);          // report.cc: norms of units
void checkpoint(CompileState& state);      // checkpoint.cc: copies the state to host memory, then to disk
void describe_state(CompileState& state);  // checkpoint.cc: called by place
void lower_program(CompileState& state);   // lower_program.cc: level 3
void check_finite(CompileState& state);    // check_finite.cc: --check-finite
void widen(CompileState& state);           // widen.cc: floats as f64, for proofs
void add_workspaces(Program& program, const CompileOptions& options);  // workspace.cc: scratch of kernels
// step_barrier.cc: joins the streams at the end of a step; `carries`: except for the gathers of the next step
void add_step_barrier(Program& program, bool carries);
void describe_repeat(CompileState& state);  // describe_repeat.cc: how a repeat depends on the microbatch
void assign_memory(Program& program);       // memory.cc: offsets
void count_memory(Program& program);        // memory.cc: approximate arena sizes, without offsets
void resolve_put_offsets(Job& job);         // resolve_put_offsets.cc: offsets of puts in other ranks' arenas

// Aborts with the pass's name if its graph or program is not well-formed. Verify proves the finished program; this
// check finds the faulty pass.
void check_invariants(const CompileState& state, std::string_view pass);

}  // namespace prun
