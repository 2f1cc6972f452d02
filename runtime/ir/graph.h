// The model graph: what the script recorded, before any placement. Values are in static single assignment.
//
// A unit is a piece of model that a strategy schedules as a whole (embedding, each block, head). A call is one use
// of a unit in the forward pass; a unit with tied weights has several. Nodes stand in execution order and each
// belongs to one call.
#pragma once
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

struct Value {
  std::string name;  // "block3.qkv.weight"; inputs: "tokens", "targets", "x", "y"
  TensorType type;
  ValueKind kind = ValueKind::activation;
  UnitId unit;  // owner of a parameter
  Init init;
  std::vector<int64_t> blocks;  // of a parameter: its last dim is results of these sizes side by side; empty: one
  int64_t key = -1;  // parameter: what its random initial values depend on; -1: its number among the parameters
  // Parameter that is split over a mesh axis or padded: `type` is the part that a rank stores, `whole` the shape of the
  // logical tensor.
  std::string split_axis;  // "" = not split
  int split_dim = 0;       // the dim that is split or padded
  Shape whole;             // empty = neither split nor padded
  int64_t grain = 1;       // each rank's run of `split_dim` is padded to a multiple of it
  // Parameter: over these axes the ranks' gradients are parts of a sum (sequence parallel norms).
  std::vector<std::string> partial_over;
  bool unwanted = false;  // a gradient that its op makes beside others, of a value that needs none
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
  UnitId twin_of;                   // the unit on another pipeline rank that has the same (tied) parameters
  UnitId part_of;                   // the unit of which these are the parameters that lie apart (small ones, experts)
};

struct Call {
  UnitId unit;
  int stage = 0;  // of the pipeline
};

struct Graph {
  Table<ValueId, Value> values;
  std::vector<Node> nodes;
  Table<UnitId, Unit> units;
  Table<CallId, Call> calls;
  ValueId loss;  // a scalar f32 value
};

// Text form: stable, one node a line (ir/dump_graph.cc). `backward`: the nodes of backward, empty before autodiff.
std::string dump_graph(const Graph& graph, const std::vector<Node>& backward);

// How large the ids may be that a model looks up: rows of a table, logits of a row. The graph says it, so that data is
// held against it before anything starts.
struct IdLimit {
  std::string input;  // "tokens", "targets", "y"
  int64_t size = 0;   // ids are below it
  std::string table;  // "the table 'token.weight' has 256 rows"
  Site site;          // of the op that looks them up
};

// One for each op that looks an input's ids up.
std::vector<IdLimit> id_limits(const Graph& graph);

}  // namespace prun
