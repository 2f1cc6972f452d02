// Ops of buffers, state of a model that is no parameter. Only graphs contain them: compile/lower.cc replaces them.
//
// Surprising fact: an update is a result that no node reads. Passes that drop unread nodes keep it.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_by_phase(const Types& inputs, const Attrs&) {
  require_inputs("by_phase", inputs, 2, 2);
  require_same_dtype("by_phase", "the value of training", inputs[0], "that of evaluations", inputs[1]);
  require_same_shape("by_phase", "the value of training", inputs[0], "that of evaluations", inputs[1]);
  return {inputs[0]};
}

void derive_by_phase(GradientBuilder& builder, const NodeView& node) {
  if (builder.wants(node.inputs[0])) builder.contribute(node.inputs[0], builder.gradient(node.outputs[0]));
}

Types infer_update(const Types& inputs, const Attrs&) {
  require_inputs("update", inputs, 2, 2);
  require_same_dtype("update", "the buffer", inputs[0], "its new value", inputs[1]);
  require_same_shape("update", "the buffer", inputs[0], "its new value", inputs[1]);
  return {inputs[0]};
}

}  // namespace

const OpDef by_phase = {.name = "by_phase",
                        .op_class = OpClass::lowered,
                        .distribution = Distribution::elementwise,
                        .infer = infer_by_phase,
                        .derive = derive_by_phase};
const OpDef update = {
    .name = "update", .op_class = OpClass::lowered, .distribution = Distribution::whole, .infer = infer_update};

}  // namespace prun::ops
