// The communication ops. The bytes on the wire depend on the group, so that their cost belongs to comm.
//
//   receiver   signal                    wait_signal     the tensor may be written from signal to wait_signal
//   sender               put                             writes at `offset` of the receiver's arena
//
// The pass distribute also adds some of them to a model's graph: with the attribute `axis`, and with a derivative.
// `enter` exists only there: it is the identity, and its gradient is all-reduced over the ranks.
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Attrs over(const NodeView& node, bool sums) {
  Attrs attrs;
  attrs.set("axis", node.attrs.text("axis"));
  if (sums) attrs.set("op", std::string("sum"));
  return attrs;
}

// Inputs are partial sums, so the gradient of each input is the gradient of the sum. If each rank has a part of that
// gradient (gradient = "partial"), it is reduced alike.
void derive_all_reduce(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0], dy = builder.gradient(node.outputs[0]);
  if (node.attrs.text("gradient") != "partial") return builder.contribute(x, dy);
  if (!builder.wants(x)) return;
  Attrs attrs = over(node, false);
  attrs.set("op", node.attrs.text("op"));
  builder.contribute(x, builder.emit(all_reduce, {dy}, {builder.type(x)}, attrs)[0]);
}

void derive_enter(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(
      x, builder.emit(all_reduce, {builder.gradient(node.outputs[0])}, {builder.type(x)}, over(node, true))[0]);
}

// Each rank has a partial sum of the gradient of the gathered tensor, or (gradient = "whole") all of it.
void derive_all_gather(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0], dy = builder.gradient(node.outputs[0]);
  if (!builder.wants(x)) return;
  if (node.attrs.text("gradient") != "whole") {
    builder.contribute(x, builder.emit(reduce_scatter, {dy}, {builder.type(x)}, over(node, true))[0]);
    return;
  }
  Attrs attrs = over(node, false);
  attrs.set("pieces", builder.type(node.outputs[0]).shape.front());
  attrs.set("dim", int64_t{0});
  builder.contribute(x, builder.emit(take_piece, {dy}, {builder.type(x)}, attrs)[0]);
}

void derive_reduce_scatter(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(
      x, builder.emit(all_gather, {builder.gradient(node.outputs[0])}, {builder.type(x)}, over(node, false))[0]);
}

void derive_all_to_all(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(
      x, builder.emit(all_to_all, {builder.gradient(node.outputs[0])}, {builder.type(x)}, over(node, false))[0]);
}

constexpr OpDef communication(std::string_view name, OpRole role, std::optional<CollKind> coll, bool moves = false,
                              void (*derive)(GradientBuilder&, const NodeView&) = nullptr) {
  return {.name = name,
          .op_class = OpClass::communication,
          .role = role,
          .distribution = derive != nullptr ? Distribution::whole : Distribution::none,
          .moves = moves,
          .derive = derive,
          .coll = coll};
}
constexpr OpDef collective(CollKind kind, bool moves = false,
                           void (*derive)(GradientBuilder&, const NodeView&) = nullptr) {
  return communication(traits(kind).name, OpRole::collective, kind, moves, derive);
}
constexpr OpDef message_op(std::string_view name, MessageTraits message) {
  OpDef op = communication(name, OpRole::message, message.offers ? std::nullopt : std::optional(CollKind::broadcast));
  op.message = message;
  return op;
}
constexpr OpDef unequal_gather() {
  OpDef op = collective(CollKind::all_gather_v);
  op.side_first = 1;
  return op;
}

}  // namespace

const OpDef all_reduce = collective(CollKind::all_reduce, true, derive_all_reduce);
const OpDef reduce = collective(CollKind::reduce);
const OpDef broadcast = collective(CollKind::broadcast, true);
const OpDef all_gather = collective(CollKind::all_gather, true, derive_all_gather);
const OpDef gather = collective(CollKind::gather);
const OpDef scatter = collective(CollKind::scatter, true);
const OpDef reduce_scatter = collective(CollKind::reduce_scatter, false, derive_reduce_scatter);
const OpDef all_to_all = collective(CollKind::all_to_all, true, derive_all_to_all);
const OpDef barrier = collective(CollKind::barrier);
const OpDef all_gather_v = unequal_gather();
const OpDef send = message_op("send", {.sends = true});
const OpDef recv = message_op("recv", {.receives = true});
const OpDef put = message_op("put", {.sends = true, .one_sided = true});
const OpDef signal = message_op("signal", {.offers = true, .one_sided = true});
const OpDef wait_signal = message_op("wait_signal", {.receives = true, .one_sided = true});
const OpDef enter = communication("enter", OpRole::collective, std::nullopt, false, derive_enter);

}  // namespace prun::ops
