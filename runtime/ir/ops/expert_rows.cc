// The exchange of a round of a dropless mixture of experts: only rows with a token are sent.
//
//   experts' slots [E,P·C,d]  -- pack_rows -->  [P,E,C,d]  -- exchange_rows -->  [P',E',C,d]  -- unpack_rows --> ...
//
// P is the number of sources of an expert's tokens: one before the exchange, the ranks after it. Surprising fact:
// packed rows are the first of the tensor, source after source and expert after expert, so that those of one rank are
// one run. The rows after them have no meaning.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

void require_filled(std::string_view op, const TensorType& filled, int64_t experts) {
  require_dtype(op, "the tensor of filled slots", filled, Dtype::i32);
  require_rank(op, "the tensor of filled slots", filled, 2);
  if (filled.shape[0] != experts || filled.shape[1] < 1)
    throw plan_error(fmt::format("{}: the filled slots are counted for {} experts, the input is of {}", op,
                                 filled.shape[0], experts));
}

Types infer_pack(const Types& inputs, const Attrs& attrs) {
  require_inputs("pack_rows", inputs, 2, 2);
  require_round("pack_rows", attrs);
  const TensorType& x = inputs[0];
  require_rank("pack_rows", "the input", x, 3);
  require_filled("pack_rows", inputs[1], x.shape[0]);
  const int64_t sources = inputs[1].shape[1];
  if (x.shape[1] % sources != 0)
    throw plan_error(fmt::format("pack_rows: {} slots do not divide into {} sources", x.shape[1], sources));
  return {{x.dtype, {sources, x.shape[0], x.shape[1] / sources, x.shape[2]}}};
}

Types infer_unpack(const Types& inputs, const Attrs& attrs) {
  require_inputs("unpack_rows", inputs, 2, 2);
  require_round("unpack_rows", attrs);
  const TensorType& x = inputs[0];
  require_rank("unpack_rows", "the input", x, 4);
  require_filled("unpack_rows", inputs[1], x.shape[1]);
  if (inputs[1].shape[1] != x.shape[0])
    throw plan_error(
        fmt::format("unpack_rows: the input is of {} sources, the filled slots of {}", x.shape[0], inputs[1].shape[1]));
  return {{x.dtype, {x.shape[1], x.shape[0] * x.shape[2], x.shape[3]}}};
}

void derive_by(GradientBuilder& builder, const NodeView& node, const OpDef& inverse, Attrs attrs) {
  const ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  const ValueId dy = builder.gradient(node.outputs[0]);
  builder.contribute(x, builder.emit(inverse, {dy, node.inputs[1]}, {builder.type(x)}, std::move(attrs))[0]);
}
void derive_pack(GradientBuilder& builder, const NodeView& node) { derive_by(builder, node, unpack_rows, node.attrs); }
void derive_unpack(GradientBuilder& builder, const NodeView& node) { derive_by(builder, node, pack_rows, node.attrs); }

// Gradients take the way back.
void derive_exchange(GradientBuilder& builder, const NodeView& node) {
  Attrs attrs = node.attrs;
  attrs.set("home", node.attrs.integer("home") == 0 ? int64_t{1} : int64_t{0});
  derive_by(builder, node, exchange_rows, std::move(attrs));
}

Cost cost_moved(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  Cost cost = cost_of(0, inputs, outputs);
  cost.bytes *= attrs.number("routed", 1);
  return cost;
}

}  // namespace

const OpDef pack_rows = {.name = "pack_rows",
                         .distribution = Distribution::own,
                         .infer = infer_pack,
                         .derive = derive_pack,
                         .cost = cost_moved};
const OpDef unpack_rows = {.name = "unpack_rows",
                           .distribution = Distribution::own,
                           .infer = infer_unpack,
                           .derive = derive_unpack,
                           .cost = cost_moved};
const OpDef exchange_rows = {.name = "exchange_rows",
                             .op_class = OpClass::communication,
                             .role = OpRole::collective,
                             .distribution = Distribution::own,
                             .derive = derive_exchange,
                             .coll = CollKind::all_to_all_v};

}  // namespace prun::ops
