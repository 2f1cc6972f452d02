// The model graph that the script recorded, before any placement, in static single assignment.
//
// A unit is a piece of model that a strategy schedules as a whole (embedding, each block, head). A call is one use of a
// unit in the forward pass; a unit with tied weights has several. Nodes are in execution order; each belongs to one
// call.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ir/attrs.h"
#include "ir/ids.h"
#include "ir/op_def.h"
#include "ir/types.h"

namespace prun {

enum class ValueKind : uint8_t { input, parameter, activation };

// Initial values of a parameter: a function of (seed, global tensor index, element index) only.
struct Init {
  std::string kind = "zeros";  // zeros, ones, constant, normal, uniform
  double scale = 0;            // constant: the value; normal: standard deviation; uniform: half width
};

// An input that the reader computes from others: each target's share of a loss that is a mean over what counts in the
// whole batch. Shares are multiplied by the number of targets, so that they are 1 if all targets count equally.
struct TargetShares {
  std::string targets;     // input with the targets
  std::string weights;     // input with a weight for each target; "" = all weigh 1
  int64_t ignored = -100;  // value of a target that does not count
};

struct Value {
  std::string name;  // "block3.qkv.weight"; inputs: "tokens", "targets", "x", "y"
  TensorType type;
  ValueKind kind = ValueKind::activation;
  UnitId unit;  // owner of a parameter
  Init init;
  std::vector<int64_t> blocks;  // parameter: sizes of the results concatenated in its last dim; empty = one result
  int64_t key = -1;             // parameter: key of its random initial values; -1 = its number among the parameters
  // Parameter that is split over a mesh axis or padded: `type` is the part that a rank stores, `whole` the shape of the
  // logical tensor.
  std::string split_axis;  // "" = not split; two axes: as ir/split_axes.h describes
  int split_dim = 0;       // the dim that is split or padded
  Shape whole;             // empty = neither split nor padded
  int64_t grain = 1;       // each rank's part of `split_dim` is padded to a multiple of it
  // Parameter: axes over which the ranks' gradients are partial sums (norms under sequence parallelism).
  std::vector<std::string> partial_over;
  int group = 0;                       // parameter: number of its optimizer group in the plan's list, from 1; 0 = none
  bool frozen = false;                 // parameter that training does not change: no gradient, no optimizer state
  bool buffer = false;                 // frozen parameter that the op `update` may change, such as running statistics
  std::optional<TargetShares> shares;  // input: present if the reader computes it
  bool unwanted = false;               // gradient that no op needs; its op computes it along with others
  Site site;
  int64_t count() const { return element_count(type.shape); }
};

struct Node {
  const OpDef* op = nullptr;
  std::vector<ValueId> inputs, outputs;
  Attrs attrs;
  CallId call;
  Site site;
};

struct Unit {
  std::string name;                 // "block3"
  std::string unit_class;           // "block": hooks run once per class
  std::vector<ValueId> parameters;  // in order of first use
  UnitId twin_of;                   // the unit on another pipeline rank with the same (tied) parameters
  UnitId part_of;                   // the unit whose separately stored parameters these are (small ones, experts)
};

struct Call {
  UnitId unit;
  int stage = 0;  // pipeline stage
};

// A summand of the loss, or of numbers that are only reported. The attribute `coefficient` of the loss ops multiplies
// their sums, so that no arithmetic runs on scalars.
struct LossTerm {
  std::vector<ValueId> values;  // scalars that loss ops write, added up
  double coefficient = 1;       // in the loss; 1 if the term is only reported
  bool optimised = true;        // part of the loss
  bool in_steps = true;         // false: only evaluations compute it
};

// A number that a plan's model names: sums over the global batch, Σ factor·term / Σ over.
struct NamedNumber {
  struct Part {
    int term = 0;  // in Graph::terms
    double factor = 1;
  };
  std::string name;
  std::vector<Part> terms, over;  // `over` empty = 1
  bool in_steps = false;          // also reported by steps
};

struct Graph {
  Table<ValueId, Value> values;
  std::vector<Node> nodes;
  Table<UnitId, Unit> units;
  Table<CallId, Call> calls;
  ValueId loss;                 // a scalar f32 value, the first term
  std::vector<LossTerm> terms;  // empty: `loss` alone
  std::vector<NamedNumber> named;
};

// Returns the terms of the loss and of named numbers, also if the loss is a single one.
std::vector<LossTerm> loss_terms(const Graph& graph);

// Returns a stable text form, one node per line (ir/dump_graph.cc). `backward`: backward nodes, empty before autodiff.
std::string dump_graph(const Graph& graph, const std::vector<Node>& backward);

// Upper bound of the ids that a model looks up: rows of a table, logits of a row. Data is checked against it before a
// run starts.
struct IdLimit {
  std::string input;               // "tokens", "targets", "y"
  int64_t size = 0;                // ids must be below it
  std::string table;               // "the table 'token.weight' has 256 rows"
  Site site;                       // site of the lookup op
  std::optional<int64_t> ignored;  // value outside the range that is not looked up
  int64_t per_sample = 1;          // ids in a sample
};

// Returns one limit for each op that looks up an input's ids.
std::vector<IdLimit> id_limits(const Graph& graph);

}  // namespace prun
