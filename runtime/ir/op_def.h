// The table of ops: all that is true of one kind of op, wherever it is asked, is its row in ops/<family>.cc. Code names
// an op by its handle (ir/ops.h), ops::linear, never by text: adding an op is a line in ops/list.def, a row, its
// kernels on each device and verify's rule.
//
// Convention: an op has ordered inputs (reads) and ordered outputs (writes). An op that updates in place lists the
// tensor in both. Tensors are contiguous and row-major. "rows" below means the product of all dims but the last.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ir/attrs.h"
#include "ir/coll_kind.h"
#include "ir/ids.h"
#include "ir/types.h"

namespace prun {

struct OpDef;
class GradientBuilder;  // compile/autodiff.h implements it; ops only record through it

// `lowered`: of the model graph only; a pass turns it into other ops, so it has no kernel. `transfer`: a copy between
// the device's memory and the host's, by whoever executes the program.
enum class OpClass : uint8_t { compute, communication, host, lowered, transfer };

struct TensorType {
  Dtype dtype = Dtype::f32;
  Shape shape;
};

struct Cost {
  double flops = 0;  // multiply-adds count two
  double bytes = 0;  // read and written once each
  double model = 0;  // of the flops: products that the model's formulas have, as model_flops counts them
};

// A node of the model graph as a derivative rule sees it: value ids.
struct NodeView {
  const std::vector<ValueId>& inputs;
  const std::vector<ValueId>& outputs;
  const Attrs& attrs;
};

// What a program has an op for.
enum class OpRole : uint8_t {
  model,       // forward
  derivative,  // backward
  optimizer,   // updates parameters: OpDef::optimizer says how
  clipping,    // global-norm clipping
  source,      // makes tensors from attributes or data, and reads none
  check,       // looks at values; what it makes is no result of the step
  collective,
  message,  // of a pair of ranks
  transfer,
  output  // to people
};

// How the compiler spreads an op's operands when a mesh axis splits weights or tokens (compile/distribute.cc).
enum class Distribution : uint8_t {
  none,         // in no graph that is distributed
  whole,        // takes everything whole and computes the same on every rank
  elementwise,  // shards stay shards
  by_rows,      // each row by itself: on a part of the tokens, gradients of parameters are parts of a sum
  own,          // a rule of its own
};

// A sum that is scaled to a mean, or its gradient. `inner`: a loss that the compiler makes, no model returns it.
enum class Loss : uint8_t { none, loss, inner, gradient };

struct OptimizerNumber {
  std::string_view name;
  double usual = 0;
};

struct OptimizerTraits {
  std::span<const std::string_view> slots;   // names of the state of each parameter
  std::span<const OptimizerNumber> numbers;  // attributes beside weight_decay
  std::string_view slots_if = {};            // the number that is 0 where there is no state; "": there always is
  const OpDef* with_cast = nullptr;          // the op that also writes a copy in the dtype of compute, its last write
  bool casts = false;                        // this is such an op
};

// A message's side. One-sided ones: the receiver offers its place (signal), the sender puts, the receiver waits.
struct MessageTraits {
  bool sends = false, receives = false, offers = false, one_sided = false;
};

struct OpDef {
  std::string_view name;
  OpClass op_class = OpClass::compute;
  OpRole role = OpRole::model;
  Distribution distribution = Distribution::none;
  // The output is an input, elsewhere or rounded: a copy of a parameter stays one.
  bool moves = false;
  // Outputs from `side_first` to before `side_end` may stay unread in a right program: statistics for a backward pass
  // that may not want them, what people look at, parts of a sample that the model has no use for.
  uint8_t side_first = 255, side_end = 255;
  // Losses and their gradients: the mean is over the elements of input `counted`, or over its rows.
  Loss loss = Loss::none;
  uint8_t counted = 0;
  bool counts_rows = false;
  const OptimizerTraits* optimizer = nullptr;
  // Types of the outputs, from those of the inputs. Throws plan_error (without a site: the caller adds it) when a
  // user's shapes do not fit; says by what. Null: the op is not part of a model (optimizers, communication).
  std::vector<TensorType> (*infer)(const std::vector<TensorType>& inputs, const Attrs& attrs) = nullptr;
  std::string_view shapes = {};  // of an op that no model contains: its rule (ir/shape_rule.h)
  // Records the backward ops of one node. Null: the op has no derivative (and a gradient that reaches it is a bug).
  void (*derive)(GradientBuilder& builder, const NodeView& node) = nullptr;
  // FLOPs and bytes of one call; null: bytes only, every tensor once.
  Cost (*cost)(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs,
               const Attrs& attrs) = nullptr;
  MessageTraits message = {};
  // The accumulating variant of an op that computes gradients of parameters; null: none. The variant reads one more
  // tensor for each write, in the order of the writes, and adds its result to it. A sum may be written in place.
  const OpDef* accumulating = nullptr;
  bool word = false;  // plans call it as prun.nn.<name>(x)
  // Of a communication op: the collective that carries it. A message is a broadcast in its pair, sender first.
  std::optional<CollKind> coll = std::nullopt;
  // What holds for a collective; for others, messages too, nothing does.
  const CollTraits& collective() const {
    static constexpr CollTraits kNothing;
    return role == OpRole::collective && coll ? traits(*coll) : kNothing;
  }
};

// What a derivative rule may do. `gradient(v)` is the id of the gradient that has arrived for value v (-1: none).
// `emit` appends a backward op and returns the ids of its outputs, typed by `types`. `contribute(v, g)` says that g
// is a contribution to v's gradient: the first becomes it, later ones are added. `wants(v)` is false for tokens
// and other values that need no gradient, so that a rule does not compute them.
// Gradients of parameters are emitted as f32 (f64 in an f64 plan) by the ops that make them themselves.
class GradientBuilder {
 public:
  virtual ~GradientBuilder() = default;
  virtual TensorType type(ValueId value) const = 0;
  virtual bool wants(ValueId value) const = 0;
  virtual ValueId gradient(ValueId value) const = 0;
  virtual std::vector<ValueId> emit(const OpDef& op, std::vector<ValueId> inputs, std::vector<TensorType> types,
                                    Attrs attrs) = 0;
  virtual void contribute(ValueId value, ValueId gradient) = 0;
};

// Null when there is no such op: for names from outside.
const OpDef* find_op(std::string_view name);
const OpDef& op_def(std::string_view name);  // aborts when there is none
const std::vector<const OpDef*>& all_ops();  // in the order of ops/list.def
// The op's own cost, or where it has none, its bytes.
Cost op_cost(const OpDef& op, const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs,
             const Attrs& attrs);

}  // namespace prun
