// The plan: what the user asked for, as the script child recorded it. plan_reader.cc reads it from the JSON that the
// child sends (the schema stands there); the compile passes turn it into a Job.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/data_source.h"
#include "ir/graph.h"
#include "ir/learning_rate.h"
#include "ir/mesh.h"
#include "ir/model_description.h"
#include "ir/program.h"

namespace prun {

// One communication action that a strategy's hook recorded for a class of units.
struct HookAction {
  std::string kind;    // all_gather, free, ensure, reduce_scatter, all_reduce, print
  std::string target;  // "params", "grads", "grad_shard"; print: what to print
  int handle = -1;     // all_gather: the handle it makes; free, ensure: the handle meant
  std::string axis;
  std::string stream;  // "" = the compute stream
  std::string op = "sum";
  std::string text;        // print
  int prefetch = 0;        // all_gather: how many gathers may run ahead
  int inflight = 1;        // reduce_scatter: how many may be unfinished behind backward
  int64_t bucket = 0;      // bytes; 0 = one unit
  int64_t first = 0;       // bytes of the first bucket; 0 = as bucket
  bool keep = false;       // all_gather: once a step, in memory of its own
  std::string wire;        // dtype that travels; "" = that of the data
  bool keep_last = false;  // free: not where the same unit's backward comes next
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

// What one strategy recorded for one class of units.
struct StrategyUnit {
  std::string unit_class;
  bool sharded = false;  // params:flat():place { axis = "S(0)" }
  std::string shard_axis;
  int64_t shard_least = -1;  // bytes: smaller parameters stay whole; -1 = the strategy names no size
  Site shard_site;
  bool accumulate = false;       // gradients of all microbatches are summed whole before they are reduced
  bool recompute = false;        // backward computes the unit's activations again
  bool recompute_whole = false;  // also those that backward has no use for
  bool offload = false;          // optimizer state lives in the host's memory
  int offload_ahead = 2;         // pieces of it on their way, besides the one that is updated
  int64_t offload_piece = 0;     // bytes of each state tensor that travel at once
  Site offload_site;
  std::vector<LayerPlacement> layers, activations;
  int64_t sync_every = 0;        // steps; 0: never
  std::vector<HookAction> sync;  // all_reduce of parameters
  std::vector<Hook> hooks;
};

// What the axes of a strategy divide.
enum class Splits : uint8_t { batch, tokens, nothing };

struct Strategy {
  std::string name;
  std::vector<std::string> axes;
  Splits splits = Splits::batch;
  std::string differs;  // why what it trains is not what one rank trains; "": it is
  Site site;
  std::vector<StrategyUnit> units;
};

// What a rank of a pipeline computes next.
struct PipelineTurn {
  enum class Kind : uint8_t { forward, backward, input, weight };  // input, weight: the halves of backward
  Kind kind = Kind::forward;
  int microbatch = 0, chunk = 0;
};

struct Pipeline {
  std::string axis;
  std::string schedule;      // its name
  int chunks = 1;            // stages of one rank
  bool v_placement = false;  // chunk 1 of rank r is stage 2·ranks - 1 - r; else chunk c is stage c·ranks + r
  bool split_by_flops = false;
  bool puts = false;  // what crosses borders is put by its sender, not received
  Site site;
  std::vector<std::vector<PipelineTurn>> turns;  // by index along the axis
};

struct Optimizer {
  const OpDef* op = nullptr;
  LearningRate lr;
  Attrs numbers;  // that OptimizerTraits names
  double weight_decay = 0, clip = 0;
  Site site;
};

struct Data : DataSource {
  int64_t context = 0;  // tokens in a sample; 0: samples have no tokens
  Site site;
};

// The loss of the model as it stands, on data that it is not trained with.
struct Evaluation {
  int64_t every = 0;    // steps
  int64_t batches = 0;  // of as many samples as a step's
  Data data;
  Site site;
};

// When a run keeps what it has trained, where it is told where.
struct Keeping {
  int64_t every = 0;         // steps; 0: at the end only
  int64_t keep = 0;          // the newest so many; 0: all
  int64_t replicate = 0;     // 1: the newest one in the host's memory, too
  int64_t memory_every = 0;  // steps between commits to memory; 0: as `every`
  Site site;
};

// Weights that the run begins with, instead of the model's initial values.
struct InitialWeights {
  std::string path;  // absolute; a Hugging Face folder, a checkpoint or a folder of them
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
  std::map<std::string, std::string> modules;  // that stand beside it: path from its folder, text
  Mesh mesh;
  Site mesh_site;
  // Level 1 and 2.
  Graph graph;  // shapes are whole, for one microbatch of one rank's share of the batch
  ModelDescription model;
  Data data;
  std::optional<Evaluation> evaluation;
  std::optional<Report> report;
  std::optional<Keeping> keeping;
  std::optional<InitialWeights> initial_weights;
  Optimizer optimizer;
  std::vector<Strategy> strategies;
  std::optional<Pipeline> pipeline;
  std::vector<std::string> batch_axes;  // that divide the batch, in the mesh's order
  int microbatches = 1;                 // of a step
  Dtype param_dtype = Dtype::f32;       // what compute sees; the optimizer's master is f32
  bool rank_order = false;
  int64_t steps = 1;
  uint64_t seed = 0;
  // Level 3: not empty means that graph and strategies are.
  std::vector<RankProgram> programs;
  std::vector<int> program_of_rank;
};

// Sizes with which a script records its plan instead of its own: what runtime/prove runs is the same plan, made small;
// what a generation runs is its model, for one sample.
struct PlanSizes {
  std::map<std::string, int> axes;  // every axis of the plan's mesh
  int microbatches = 1;             // of a step
  int64_t batch = 1;                // samples of a step, over all ranks
  bool alone = false;               // without strategies: what one rank would train
  int tensor_ranks = 0;  // > 0: for a generation, where so many ranks split the weights and every other axis has one;
                         // `axes` is not looked at, and no data need exist
};

}  // namespace prun
