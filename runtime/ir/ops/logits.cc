// Ops over rows of logits, besides cross_entropy: kl compares them with a teacher's, a z-loss squares the results of
// logsumexp (PaLM, Chowdhery et al. 2022), accuracy counts the rows whose largest logit is the target's.
//
// Surprising fact: accuracy is a scaled sum like a loss, so that the place pass sets its `scale`, but no model is
// trained with it: it has no derivative.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_kl(const Types& inputs, const Attrs& attrs) {
  require_inputs("kl", inputs, 2, 2);
  require_float("kl", "the logit tensor", inputs[0]);
  require_rank_at_least("kl", "the logit tensor", inputs[0], 1);
  require_same_dtype("kl", "the logits", inputs[0], "the teacher's", inputs[1]);
  require_same_shape("kl", "the logits", inputs[0], "the teacher's", inputs[1]);
  if (!(attrs.number("temperature", 1) > 0))
    throw plan_error(fmt::format("kl: temperature is {}, should be above 0", attrs.number("temperature", 1)));
  return {{wide(inputs[0].dtype), {}}};
}

// The teacher is a constant.
void derive_kl(GradientBuilder& builder, const NodeView& node) {
  require_end_of_model("kl", builder, node);
  const ValueId x = node.inputs[0], teacher = node.inputs[1];
  if (builder.wants(x)) builder.contribute(x, builder.emit(kl_grad, {x, teacher}, {builder.type(x)}, node.attrs)[0]);
}

Types infer_logsumexp(const Types& inputs, const Attrs&) {
  require_inputs("logsumexp", inputs, 1, 1);
  require_float("logsumexp", "the logit tensor", inputs[0]);
  require_rank_at_least("logsumexp", "the logit tensor", inputs[0], 2);
  return {{wide(inputs[0].dtype), {row_count(inputs[0])}}};
}

void derive_logsumexp(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0], lse = node.outputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(x, builder.emit(logsumexp_grad, {x, lse, builder.gradient(lse)}, {builder.type(x)}, {})[0]);
}

Types infer_accuracy(const Types& inputs, const Attrs&) {
  require_inputs("accuracy", inputs, 2, 2);
  require_float("accuracy", "the logit tensor", inputs[0]);
  require_rank_at_least("accuracy", "the logit tensor", inputs[0], 1);
  require_dtype("accuracy", "the target tensor", inputs[1], Dtype::i32);
  if (element_count(inputs[1].shape) != row_count(inputs[0]))
    throw plan_error(fmt::format("accuracy: the logits have {} rows, the targets {} elements", row_count(inputs[0]),
                                 element_count(inputs[1].shape)));
  const TensorType sum = {wide(inputs[0].dtype), {}};
  return {sum, sum};
}

}  // namespace

const OpDef kl = {.name = "kl",
                  .distribution = Distribution::whole,
                  .loss = Loss::loss,
                  .counts_rows = true,
                  .infer = infer_kl,
                  .derive = derive_kl,
                  .cost = per_input<5>};
const OpDef kl_grad = {.name = "kl_grad",
                       .role = OpRole::derivative,
                       .loss = Loss::gradient,
                       .counts_rows = true,
                       .shapes = "x [..,V], teacher as x -> dx as x",
                       .cost = per_output<10>};
const OpDef logsumexp = {.name = "logsumexp",
                         .distribution = Distribution::whole,
                         .infer = infer_logsumexp,
                         .derive = derive_logsumexp,
                         .cost = per_input<3>};
const OpDef logsumexp_grad = {.name = "logsumexp_grad",
                              .role = OpRole::derivative,
                              .shapes = "x [..,V], lse #R, dlse #R -> dx as x",
                              .cost = per_output<4>};
const OpDef accuracy = {.name = "accuracy",
                        .distribution = Distribution::whole,
                        .loss = Loss::inner,
                        .counts_rows = true,
                        .infer = infer_accuracy,
                        .cost = per_input<1>};

}  // namespace prun::ops
