// The plan as the script child recorded it from the user's script. plan_reader.cc reads it from the child's JSON
// (schema in plan_reader.h); the compile passes turn it into a Job.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/adapters.h"
#include "ir/data_source.h"
#include "ir/graph.h"
#include "ir/learning_rate.h"
#include "ir/mesh.h"
#include "ir/model_description.h"
#include "ir/program.h"

namespace prun {

// A communication action that a strategy's hook recorded for a class of units.
struct HookAction {
  std::string kind;    // all_gather, free, ensure, reduce_scatter, all_reduce, print
  std::string target;  // "params", "grads", "grad_shard"; print: what to print
  int handle = -1;     // all_gather: the handle that it creates; free, ensure: the handle that it refers to
  int source = -1;     // all_gather: the handle whose result it gathers; -1 = the unit's shard
  std::string axis;
  std::string stream;  // "" = the compute stream
  std::string op = "sum";
  std::string text;        // print
  int prefetch = 0;        // all_gather: gathers that may run ahead
  int inflight = 1;        // reduce_scatter: unfinished reductions that may overlap with backward
  int64_t bucket = 0;      // bytes; 0 = one unit
  int64_t first = 0;       // bytes of the first bucket; 0 = `bucket`
  bool keep = false;       // all_gather: once per step, in memory of its own
  std::string wire;        // dtype on the wire; "" = the data's dtype
  bool keep_last = false;  // free: except if the same unit's backward is next
  Site site;
};

struct Hook {
  bool after = false;
  Phase phase = Phase::forward;  // forward or backward
  std::vector<HookAction> actions;
};

// A layer's weight (layer not empty) or a unit's activations, sharded along a dim over a mesh axis.
struct LayerPlacement {
  std::string layer;  // "qkv": the parameters qkv.weight and qkv.bias of the unit
  std::string axis;
  int dim = 0;
  Site site;
};

// One strategy's record for one class of units.
struct StrategyUnit {
  std::string unit_class;
  bool sharded = false;  // params:flat():place { axis = "S(0)" }
  // "dp", or several: the first cuts the vector, each further one the pieces.
  std::string shard_axis;
  int64_t shard_least = -1;  // bytes: smaller parameters remain whole; -1 = no threshold
  Site shard_site;
  bool accumulate = false;            // gradients of all microbatches are accumulated whole before they are reduced
  bool recompute = false;             // backward recomputes the unit's activations
  std::vector<int> recompute_stages;  // pipeline stages whose units recompute; empty = all
  bool recompute_whole = false;       // backward also recomputes activations that it does not need
  bool offload = false;               // optimizer state is in host memory
  int offload_ahead = 2;              // pieces of it in transfer, besides the one being updated
  int64_t offload_piece = 0;          // bytes of each state tensor per transfer
  Site offload_site;
  std::vector<LayerPlacement> layers, activations;
  int64_t sync_every = 0;        // steps; 0 = never
  std::vector<HookAction> sync;  // all_reduce of parameters
  std::vector<Hook> hooks;
};

// The data that the axes of a strategy divide.
enum class Splits : uint8_t { batch, tokens, nothing };

struct Strategy {
  std::string name;
  std::vector<std::string> axes;
  std::vector<std::string> shared;  // axes of other strategies, over which it splits parameters and no data
  Splits splits = Splits::batch;
  std::string share;    // of the tokens: zigzag, documents; "" = no tokens are split
  std::string differs;  // reason why its result differs from training on one rank; "" = equal
  Site site;
  std::vector<StrategyUnit> units;
};

// A slot of a pipeline schedule: the next computation of a rank.
struct PipelineTurn {
  enum class Kind : uint8_t { forward, backward, input, weight };  // input, weight: the halves of backward (dx, dw)
  Kind kind = Kind::forward;
  int microbatch = 0, chunk = 0;
  bool with_next = false;  // the ops of this slot and of the next one alternate (compile/alternate.h)
};

// An entry of a layout: the next `count` calls of a unit or of a class.
struct LayoutUnits {
  std::string name;
  int count = 1;
};

struct LayoutStage {
  bool fill = false;  // stands for all stages that the layout does not list, and for all units
  std::vector<LayoutUnits> units;
};

struct Pipeline {
  std::string axis;
  std::string schedule;      // name of the schedule
  int chunks = 1;            // stages per rank
  bool v_placement = false;  // chunk 1 of rank r is stage 2·ranks - 1 - r; otherwise chunk c is stage c·ranks + r
  bool split_by_flops = false;
  std::vector<int> stage_layers;    // layers of each stage; empty = shared equally
  std::vector<LayoutStage> layout;  // the units of each stage; empty = by the rules above
  std::vector<int> stage_of_call;   // the layout of a reduced plan, which is resolved
  bool puts = false;                // transfers between stages are one-sided puts of the sender
  Site site;
  std::vector<std::vector<PipelineTurn>> turns;  // by index along the axis
};

// Parameters with settings of their own; Value::group refers to it.
struct ParameterGroup {
  std::string match;  // what it matches, as messages show it: "*.bias", "1 dim"
  double lr = 1;      // factor of the learning rate
  double weight_decay = 0;
  int optimizer = 0;  // its own, number in Optimizer::others from 1; 0 = the plan's
};

struct Optimizer {
  const OpDef* op = nullptr;
  LearningRate lr;
  Attrs numbers;                   // attributes that OptimizerTraits names; of a programmed optimizer its program
  std::string name;                // prefix of the names of its state
  std::vector<std::string> slots;  // names of the state tensors of each parameter
  double weight_decay = 0, clip = 0;
  double ema = 0;  // decay of a running average of the parameters; 0 = none
  std::vector<ParameterGroup> groups;
  std::vector<Optimizer> others;  // of groups with their own; without groups, clip and ema
  Site site;
  // Returns the settings of a parameter.
  ParameterGroup settings_of(const Value& parameter) const {
    return parameter.group > 0 ? groups[parameter.group - 1] : ParameterGroup{"", 1, weight_decay};
  }
  // Returns the optimizer of a parameter.
  const Optimizer& of(const Value& parameter) const {
    const int number = settings_of(parameter).optimizer;
    return number > 0 ? others[number - 1] : *this;
  }
};

struct Data : DataSource {
  int64_t context = 0;  // tokens per sample; 0 = samples have no tokens
  Site site;
};

// The loss of the current model on data that it is not trained with.
struct Evaluation {
  int64_t every = 0;     // steps
  int64_t batches = 0;   // batches of as many samples as a step has
  bool first = false;    // also before the first step
  bool ema = false;      // of the optimizer's running average of the parameters
  int64_t patience = 0;  // evaluations in a row without improvement that end the run; 0 = unlimited
  Data data;
  Site site;
};

// Schedule of checkpoints, for runs with a checkpoint directory.
struct Keeping {
  int64_t every = 0;         // steps; 0 = at the end only
  int64_t keep = 0;          // number of newest checkpoints to keep; 0 = all
  int64_t replicate = 0;     // 1 = also replicate the newest one in host memory
  int64_t memory_every = 0;  // steps between commits to memory; 0 = `every`
  std::string best;          // metric whose best checkpoint is retained; "" = none
  bool largest = false;      // its largest value is the best
  Site site;
};

// Weights that the run begins with, instead of the model's initial values.
struct InitialWeights {
  std::string path;      // absolute path of a Hugging Face folder, a checkpoint or a folder of checkpoints
  bool partial = false;  // parameters that the weights lack get the model's initial values
  Site site;
};

// Norms of each unit's parameters and gradients, for --metrics.
struct Report {
  int64_t every = 0;  // steps
  Site site;
};

// A tensor and an op of a level 3 program.
struct ProgramTensor {
  std::string name;
  TensorType type;
};
struct ProgramOp {
  std::string kind;
  std::vector<TensorId> inputs, outputs;
  Attrs attrs;
  std::string axis;
  Site site;
};
struct RankProgram {
  std::vector<ProgramTensor> tensors;
  std::vector<ProgramOp> ops;
};

struct Plan {
  std::string path;                            // as typed
  std::map<std::string, std::string> modules;  // in the plan's folder: relative path -> text
  Mesh mesh;
  Site mesh_site;
  // Levels 1 and 2.
  Graph graph;  // whole shapes, for one microbatch of one rank's share of the batch
  ModelDescription model;
  Data data;
  std::optional<Evaluation> evaluation;
  std::optional<Report> report;
  std::optional<Keeping> keeping;
  std::optional<InitialWeights> initial_weights;
  Adapters adapters;
  Optimizer optimizer;
  std::map<std::string, ValueId> outputs;  // values of the graph that the model names, for `prun predict`
  std::vector<Strategy> strategies;
  std::optional<Pipeline> pipeline;
  std::vector<std::string> batch_axes;  // axes that divide the batch, in the mesh's order
  int microbatches = 1;                 // per step
  Dtype param_dtype = Dtype::f32;       // dtype of compute; the optimizer's master is f32
  bool rank_order = false;
  int64_t steps = 1;
  uint64_t seed = 0;
  // Level 3: if not empty, graph and strategies are empty.
  std::vector<RankProgram> programs;
  std::vector<int> program_of_rank;
};

// Sizes that replace the script's own when it records its plan. A proof records the plan at small sizes, a generation
// records its model for one sample.
struct PlanSizes {
  std::map<std::string, int> axes;  // every axis of the plan's mesh
  int microbatches = 1;             // per step
  int64_t batch = 1;                // samples per step over all ranks
  bool alone = false;               // without strategies: the training of one rank
  // > 0: records a generation, in which this many ranks split the weights and every other axis has one; `axes` is
  // ignored, and no data need exist.
  int tensor_ranks = 0;
};

}  // namespace prun
