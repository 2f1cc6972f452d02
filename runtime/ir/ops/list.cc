// All ops, family by family: a family is a file here that defines a function of its name, and a line in the list below.
#include <unordered_map>

#include "ir/ops/rules.h"

// clang-format off
#define PRUN_OP_FAMILIES(X) \
  X(linear)        \
  X(bias)          \
  X(activations)   \
  X(layernorm)     \
  X(rmsnorm)       \
  X(rotary)        \
  X(attention)     \
  X(ring_attention) \
  X(embedding)     \
  X(positions)     \
  X(moe)           \
  X(expert_linear) \
  X(cross_entropy) \
  X(losses)        \
  X(dropout)       \
  X(elementwise)   \
  X(pieces)        \
  X(constants)     \
  X(optimizers)    \
  X(check_finite)  \
  X(host)          \
  X(communication) \
  X(transfers)
// clang-format on

namespace prun {
namespace ops {
#define PRUN_DECLARE_FAMILY(name) std::span<const OpDef> name();
PRUN_OP_FAMILIES(PRUN_DECLARE_FAMILY)
#undef PRUN_DECLARE_FAMILY
}  // namespace ops

const std::vector<const OpDef*>& all_ops() {
  static const std::vector<const OpDef*> list = [] {
    std::vector<const OpDef*> ops;
#define PRUN_APPEND_FAMILY(name) \
  for (const OpDef& op : ops::name()) ops.push_back(&op);
    PRUN_OP_FAMILIES(PRUN_APPEND_FAMILY)
#undef PRUN_APPEND_FAMILY
    return ops;
  }();
  return list;
}

const OpDef* find_op(std::string_view name) {
  static const std::unordered_map<std::string_view, const OpDef*> by_name = [] {
    std::unordered_map<std::string_view, const OpDef*> map;
    for (const OpDef* op : all_ops()) PRUN_CHECK(map.emplace(op->name, op).second, std::string(op->name) + " twice");
    return map;
  }();
  auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : it->second;
}

const OpDef& op_def(std::string_view name) {
  const OpDef* op = find_op(name);
  PRUN_CHECK(op != nullptr, "no op " + std::string(name));
  return *op;
}

Cost op_cost(const OpDef& op, const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs,
             const Attrs& attrs) {
  return op.cost ? op.cost(inputs, outputs, attrs) : ops::cost_of(0, inputs, outputs);
}

}  // namespace prun
