// dropout: y = x / (1 − p) or 0, by a random number per element (Srivastava et al., 2014).
//
// The number is a function of (seed, step, key) and of the element's index in the whole sample (prun/philox.h), so that
// the mask is the same under any sharding, and the derivative recomputes it instead of retaining it.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Types infer_dropout(const Types& inputs, const Attrs& attrs) {
  require_inputs("dropout", inputs, 1, 1);
  const TensorType& x = inputs[0];
  require_float("dropout", "the input", x);
  if (x.shape.size() != 2 && x.shape.size() != 3)
    throw plan_error(fmt::format("dropout: the input is {}, should have 2 or 3 dims", shape_text(x.shape)));
  double p = attrs.number("p");
  if (!(p >= 0 && p < 1)) throw plan_error(fmt::format("dropout: p is {}, should be at least 0 and below 1", p));
  if (x.shape.size() == 3) require_chunks("dropout", attrs, x.shape[1]);
  return {x};
}

void derive_dropout(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(x, builder.emit(dropout, {builder.gradient(node.outputs[0])}, {builder.type(x)}, node.attrs)[0]);
}

}  // namespace

const OpDef dropout = {.name = "dropout",
                       .distribution = Distribution::own,
                       .infer = infer_dropout,
                       .derive = derive_dropout,
                       .cost = per_output<25>};  // Philox, estimated

}  // namespace prun::ops
