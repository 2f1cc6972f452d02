// A small autodiff pass for tests of derivative rules: types by id, gradients by id, backward nodes in order.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/ops.h"

namespace prun {

class Recorder final : public GradientBuilder {
 public:
  struct Recorded {
    std::string kind;
    std::vector<ValueId> inputs, outputs;
    Attrs attrs;
  };
  Table<ValueId, TensorType> types;
  Table<ValueId, bool> wanted;
  std::map<ValueId, ValueId> gradients;
  std::vector<Recorded> nodes;

  TensorType type(ValueId value) const override { return types[value]; }
  bool wants(ValueId value) const override { return wanted[value]; }
  ValueId gradient(ValueId value) const override { return gradients.count(value) ? gradients.at(value) : ValueId(); }
  const OpDef* gradient_op(ValueId value) const override {
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node)
      for (const ValueId output : node->outputs)
        if (output == gradient(value)) return find_op(node->kind);
    return nullptr;
  }
  std::vector<ValueId> emit(const OpDef& op, std::vector<ValueId> inputs, std::vector<TensorType> outputs,
                            Attrs attrs) override {
    Recorded node{std::string(op.name), std::move(inputs), {}, std::move(attrs)};
    for (const TensorType& output : outputs) {
      node.outputs.push_back(static_cast<int>(types.size()));
      types.push_back(output);
      wanted.push_back(false);
    }
    nodes.push_back(node);
    return node.outputs;
  }
  void contribute(ValueId value, ValueId gradient) override {
    EXPECT_TRUE(wants(value));
    EXPECT_EQ(type(value).shape, type(gradient).shape);
    ValueId& known = gradients[value];
    known = known < 0 ? gradient : emit(ops::add, {known, gradient}, {type(gradient)}, {})[0];
  }
  void replace(ValueId value, ValueId gradient) override { gradients[value] = gradient; }
};

}  // namespace prun
