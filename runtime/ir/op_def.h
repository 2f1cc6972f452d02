// The table of ops: the row of an op in ops/<family>.cc holds everything that is true of it in all parts of prun. Code
// refers to an op by its handle (ir/ops.h), ops::linear, never by text. A new op is a line in ops/list.def, a row, its
// kernels on each device, and verify's rule.
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
class GradientBuilder;  // compile/autodiff.cc implements it; ops only record through it

// `lowered`: occurs in the model graph only; a pass expands it to other ops, so it has no kernel. `transfer`: a copy
// between device and host memory, made by the executor.
enum class OpClass : uint8_t { compute, communication, host, lowered, transfer };

struct TensorType {
  Dtype dtype = Dtype::f32;
  Shape shape;
};

struct Cost {
  double flops = 0;  // 2 per multiply-add
  double bytes = 0;  // each tensor read or written once
  double model = 0;  // the part of `flops` that the model's formulas contain, which model_flops counts
};

// A node of the model graph, as a derivative rule gets it: value ids.
struct NodeView {
  const std::vector<ValueId>& inputs;
  const std::vector<ValueId>& outputs;
  const Attrs& attrs;
};

// Purpose of an op in a program.
enum class OpRole : uint8_t {
  model,       // forward
  derivative,  // backward
  optimizer,   // updates parameters, as OpDef::optimizer describes
  average,     // follows parameters
  clipping,    // global-norm clipping
  source,      // computes tensors from attributes or data, without reads
  check,       // checks values; its outputs are no results of the step
  collective,
  message,  // between a pair of ranks
  transfer,
  output  // to users
};

// The distribution of an op by the compiler when a mesh axis splits weights or tokens (compile/distribute.cc).
enum class Distribution : uint8_t {
  none,         // in no distributed graph
  whole,        // takes whole operands; all ranks compute the same
  elementwise,  // shards remain shards
  by_rows,      // processes rows independently: on a shard of the tokens, parameter gradients are partial sums
  own,          // has its own rule
};

// A sum scaled to a mean, or its gradient. `inner`: a loss that the compiler creates; no model returns it.
enum class Loss : uint8_t { none, loss, inner, gradient };

struct OptimizerNumber {
  std::string_view name;
  double usual = 0;
};

struct OptimizerTraits {
  std::span<const std::string_view> slots;   // names of the state tensors of each parameter
  std::span<const OptimizerNumber> numbers;  // attributes besides weight_decay
  std::string_view slots_if = {};            // the number that is 0 if there is no state; "" = always state
  const OpDef* with_cast = nullptr;          // the op that also writes a copy in the compute dtype, its last write
  bool casts = false;                        // this op is such a variant
  bool programmed = false;                   // the plan defines its state and its update (Optimizer::slots)
  // The op that computes a direction from gradient and state; then this op applies an update that other ops compute
  // from the directions of whole matrices, and reads neither.
  const OpDef* direction = nullptr;
  bool prepares = false;  // this op computes operands of an op that updates parameters, and writes none itself
  // Its state is the means of squared gradients over the rows and columns of each matrix, in vectors of their own
  // (prun/sdk/factored_updates.h); `slots` is empty.
  bool factored = false;
};

// Side of a message. One-sided: the receiver offers a buffer (signal), the sender puts, the receiver waits.
struct MessageTraits {
  bool sends = false, receives = false, offers = false, one_sided = false;
};

struct OpDef {
  std::string_view name;
  OpClass op_class = OpClass::compute;
  OpRole role = OpRole::model;
  Distribution distribution = Distribution::none;
  // The output equals an input, moved or rounded: a copy of a parameter is still a parameter.
  bool moves = false;
  // Outputs [side_first, side_end) may be unread in a correct program: statistics that backward may not need, output
  // for users, unused parts of a sample.
  uint8_t side_first = 255, side_end = 255;
  // Losses and their gradients: the mean is over the elements of input `counted`, or over its rows.
  Loss loss = Loss::none;
  uint8_t counted = 0;
  bool counts_rows = false;
  const OptimizerTraits* optimizer = nullptr;
  // Infers the types of the outputs from those of the inputs. Throws plan_error with the sizes if a user's shapes do
  // not fit; the caller adds the site. Null: the op is not part of a model (optimizers, communication).
  std::vector<TensorType> (*infer)(const std::vector<TensorType>& inputs, const Attrs& attrs) = nullptr;
  std::string_view shapes = {};  // shape rule of an op that no model contains (ir/shape_rule.h)
  // Records the backward ops of one node. Null: the op has no derivative, and a gradient that reaches it is a bug.
  void (*derive)(GradientBuilder& builder, const NodeView& node) = nullptr;
  // Returns FLOPs and bytes of one call; null = only bytes, every tensor once.
  Cost (*cost)(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs,
               const Attrs& attrs) = nullptr;
  MessageTraits message = {};
  // The accumulating variant of an op that computes gradients of parameters; null = none. The variant reads one more
  // tensor for each write, in the order of the writes, and adds its result to it. The sum may be written in place.
  const OpDef* accumulating = nullptr;
  bool word = false;  // plans call it as prun.nn.<name>(x)
  // Communication op: the collective that implements it. A message is a broadcast in its pair, sender first.
  std::optional<CollKind> coll = std::nullopt;
  // Returns the traits of a collective; none of them apply to other ops, including messages.
  const CollTraits& collective() const {
    static constexpr CollTraits kNothing;
    return role == OpRole::collective && coll ? traits(*coll) : kNothing;
  }
};

// Interface of derivative rules. The ops that compute gradients of parameters emit them as f32 (f64 in an f64 plan).
class GradientBuilder {
 public:
  virtual ~GradientBuilder() = default;
  virtual TensorType type(ValueId value) const = 0;
  virtual bool wants(ValueId value) const = 0;        // false: rules skip the gradient (tokens, for example)
  virtual ValueId gradient(ValueId value) const = 0;  // the gradient accumulated so far; -1 = none
  // Returns the op that computes the gradient accumulated so far; null = none.
  virtual const OpDef* gradient_op(ValueId value) const = 0;
  // Appends a backward op and returns its outputs, typed by `types`.
  virtual std::vector<ValueId> emit(const OpDef& op, std::vector<ValueId> inputs, std::vector<TensorType> types,
                                    Attrs attrs) = 0;
  virtual void contribute(ValueId value, ValueId gradient) = 0;  // adds to the value's gradient
  // Replaces the gradient accumulated so far by one that contains it.
  virtual void replace(ValueId value, ValueId gradient) = 0;
};

// Returns null if there is no such op; for names that come from a plan or a file.
const OpDef* find_op(std::string_view name);
const OpDef& op_def(std::string_view name);  // aborts if there is none
const std::vector<const OpDef*>& all_ops();  // in the order of ops/list.def
// Returns the op's own cost, or its bytes if it has none.
Cost op_cost(const OpDef& op, const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs,
             const Attrs& attrs);

}  // namespace prun
