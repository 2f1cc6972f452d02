// The table of ops: what one kind of op is. Shape rule, derivative and cost stand in one place, ops/<kind>.cc;
// adding an op is a new file there, one line in ops/list.cc and a kernel in each device.
//
// Convention: an op has ordered inputs (reads) and ordered outputs (writes). An op that updates in place lists the
// tensor in both. Tensors are contiguous and row-major. "rows" below means the product of all dims but the last.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ir/attrs.h"
#include "ir/coll_kind.h"
#include "ir/ids.h"
#include "ir/types.h"

namespace prun {

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

struct OpDef {
  std::string_view name;
  OpClass op_class = OpClass::compute;
  // Types of the outputs, from those of the inputs. Throws plan_error (without a site: the caller adds it) when a
  // user's shapes do not fit; says by what. Null: the op is not part of a model (optimizers, communication).
  std::vector<TensorType> (*infer)(const std::vector<TensorType>& inputs, const Attrs& attrs) = nullptr;
  // Records the backward ops of one node. Null: the op has no derivative (and a gradient that reaches it is a bug).
  void (*derive)(GradientBuilder& builder, const NodeView& node) = nullptr;
  // FLOPs and bytes of one call; null: bytes only, every tensor once.
  Cost (*cost)(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs,
               const Attrs& attrs) = nullptr;
  // Of a communication op: the collective that carries it. A message is a broadcast in its pair, sender first.
  std::optional<CollKind> coll = std::nullopt;
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
  virtual std::vector<ValueId> emit(std::string_view kind, std::vector<ValueId> inputs, std::vector<TensorType> types,
                                    Attrs attrs) = 0;
  virtual void contribute(ValueId value, ValueId gradient) = 0;
};

// Null when there is no such op.
const OpDef* find_op(std::string_view name);
const OpDef& op_def(std::string_view name);  // aborts when there is none: for names that are ours
const std::vector<const OpDef*>& all_ops();  // in the order of ops/list.cc
// The op's own cost, or where it has none, its bytes.
Cost op_cost(const OpDef& op, const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs,
             const Attrs& attrs);

}  // namespace prun
