// The plan: what the user asked for, as the script child recorded it. plan_json.cc reads it from the JSON that the
// child sends (the schema stands there); the compile passes turn it into a Job.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/learning_rate.h"
#include "ir/mesh.h"
#include "ir/program.h"

namespace prun {

// One communication intent that a strategy's hook recorded for a class of units.
struct Intent {
  std::string kind;      // all_gather, free, ensure, reduce_scatter, all_reduce, print
  std::string target;    // "params", "grads", "grad_shard"; print: what to print
  int handle = -1;       // all_gather: the handle it makes; free, ensure: the handle meant
  std::string axis;
  std::string stream;    // "" = the compute stream
  std::string op = "sum";
  std::string text;      // print
  int prefetch = 0;      // all_gather: how many gathers may run ahead
  int inflight = 1;      // reduce_scatter: how many may be unfinished behind backward
  int64_t bucket = 0;    // bytes; 0 = one unit
  int64_t first = 0;     // bytes of the first bucket; 0 = as bucket
  bool keep_last = false;  // free: not for the last call of the forward pass
  Site site;
};

struct Hook {
  bool after = false;
  Phase phase = Phase::forward;  // forward or backward
  std::vector<Intent> intents;
};

// What one strategy recorded for one class of units.
struct StrategyUnit {
  std::string unit_class;
  bool sharded = false;      // params:flat():place { axis = "S(0)" }
  std::string shard_axis;
  Site shard_site;
  std::vector<Hook> hooks;
};

struct Strategy {
  std::string name;
  std::string axis;  // the data axis it works on
  Site site;
  std::vector<StrategyUnit> units;
};

struct Optimizer {
  std::string kind;  // sgd, adamw
  LearningRate lr;
  double momentum = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, clip = 0;
  Site site;
};

struct Data {
  std::string kind;  // bytes, tokens, random, index
  std::string path;
  int64_t batch = 0;       // global
  int64_t file_bytes = 0;  // of the file at `path`
  int64_t skip_bytes = 0;  // header of the file
  int64_t vocab = 0;       // tokens at or above it are an error
  int64_t context = 0;     // tokens in a sample; 0: samples have no tokens
  Site site;
};

// A tensor and an op of a level 3 program.
struct ProgramTensor {
  std::string name;
  TensorType type;
};
struct ProgramOp {
  std::string kind;
  std::vector<int> inputs, outputs;
  Attrs attrs;
  std::string axis;
  Site site;
};
struct RankProgram {
  std::vector<ProgramTensor> tensors;
  std::vector<ProgramOp> ops;
};

struct Plan {
  std::string path;  // as typed
  Mesh mesh;
  Site mesh_site;
  // Level 1 and 2.
  Graph graph;       // shapes are those of one rank's share of the batch
  Data data;
  Optimizer optimizer;
  std::vector<Strategy> strategies;
  Dtype param_dtype = Dtype::f32;  // what compute sees; the optimizer's master is f32
  bool rank_order = false;
  int64_t steps = 1;
  uint64_t seed = 0;
  // Level 3: not empty means that graph and strategies are.
  std::vector<RankProgram> programs;
  std::vector<int> program_of_rank;
};

}  // namespace prun
