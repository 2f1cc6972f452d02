// All ops, in order and by name.
#include <unordered_map>

#include "ir/ops/rules.h"

namespace prun {

const std::vector<const OpDef*>& all_ops() {
  static const std::vector<const OpDef*> list = {
#define OP(name) &ops::name,
#include "ir/ops/list.def"
#undef OP
  };
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
  if (op.cost == nullptr) return ops::cost_of(0, inputs, outputs);
  if (attrs.integer("round") > 0) return {};  // a later round of experts is expected to have no token
  Cost cost = op.cost(inputs, outputs, attrs);
  if (cost.model > 0) cost.model *= attrs.number("routed", 1) / static_cast<double>(attrs.integer("replicas", 1));
  return cost;
}

}  // namespace prun
