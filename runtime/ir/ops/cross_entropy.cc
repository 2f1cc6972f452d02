// cross_entropy: scale·Σ over rows of (log-sum-exp − logit of the target). The derivative is (softmax − one-hot)·scale,
// recomputed from the kept log-sum-exp.
//
// As every loss it is differentiated with seed 1, so nothing may be computed from it.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_cross_entropy(const Types& inputs, const Attrs&) {
  require_inputs("cross_entropy", inputs, 2, 2);
  const TensorType &logits = inputs[0], &targets = inputs[1];
  require_float("cross_entropy", "the logit tensor", logits);
  require_rank_at_least("cross_entropy", "the logit tensor", logits, 1);
  require_dtype("cross_entropy", "the target tensor", targets, Dtype::i32);
  if (element_count(targets.shape) != row_count(logits))
    throw plan_error(fmt::format("cross_entropy: the logits {} have {} rows, the targets {} have {} elements",
                                 shape_text(logits.shape), row_count(logits), shape_text(targets.shape),
                                 element_count(targets.shape)));
  return {{wide(logits.dtype), {}}, {wide(logits.dtype), {row_count(logits)}}};
}

void derive_cross_entropy(GradientBuilder& builder, const NodeView& node) {
  require_end_of_model("cross_entropy", builder, node);
  int logits = node.inputs[0];
  if (!builder.wants(logits)) return;
  std::vector<int> grad =
      builder.emit("cross_entropy_grad", {logits, node.inputs[1], node.outputs[1]}, {builder.type(logits)}, node.attrs);
  builder.contribute(logits, grad[0]);
}

const OpDef kOps[] = {
    {.name = "cross_entropy", .infer = infer_cross_entropy, .derive = derive_cross_entropy, .cost = per_input<3>},
    {.name = "cross_entropy_grad", .cost = per_output<4>},
};

}  // namespace

std::span<const OpDef> cross_entropy() { return kOps; }

}  // namespace prun::ops
