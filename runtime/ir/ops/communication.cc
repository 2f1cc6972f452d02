// The communication ops. Which bytes cross the wire depends on the group, so their cost belongs to comm.
//
// put, signal and wait_signal are a message in three ops: the receiver's `signal` says that its tensor may be written
// from now on, the sender's `put` writes it at `offset` of the receiver's arena, `wait_signal` ends when that is done.
//
// Some also stand in a model's graph, where the pass distribute puts them: with the attribute `axis`, and with a
// derivative. `enter` is one of these only: it is the input, whose gradient is the sum over the ranks' gradients.
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

Attrs over(const NodeView& node, bool sums) {
  Attrs attrs;
  attrs.set("axis", node.attrs.text("axis"));
  if (sums) attrs.set("op", std::string("sum"));
  return attrs;
}

// The ranks' parts of a sum: each part's gradient is the sum's.
void derive_all_reduce(GradientBuilder& builder, const NodeView& node) {
  builder.contribute(node.inputs[0], builder.gradient(node.outputs[0]));
}

void derive_enter(GradientBuilder& builder, const NodeView& node) {
  int x = node.inputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(
      x, builder.emit("all_reduce", {builder.gradient(node.outputs[0])}, {builder.type(x)}, over(node, true))[0]);
}

// Every rank makes a part of the gradient of what it has gathered, or (gradient = "whole") all of it.
void derive_all_gather(GradientBuilder& builder, const NodeView& node) {
  int x = node.inputs[0], dy = builder.gradient(node.outputs[0]);
  if (!builder.wants(x)) return;
  if (node.attrs.text("gradient") != "whole") {
    builder.contribute(x, builder.emit("reduce_scatter", {dy}, {builder.type(x)}, over(node, true))[0]);
    return;
  }
  Attrs attrs = over(node, false);
  attrs.set("pieces", builder.type(node.outputs[0]).shape.front());
  attrs.set("dim", int64_t{0});
  builder.contribute(x, builder.emit("take_piece", {dy}, {builder.type(x)}, attrs)[0]);
}

void derive_reduce_scatter(GradientBuilder& builder, const NodeView& node) {
  int x = node.inputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(
      x, builder.emit("all_gather", {builder.gradient(node.outputs[0])}, {builder.type(x)}, over(node, false))[0]);
}

void derive_all_to_all(GradientBuilder& builder, const NodeView& node) {
  int x = node.inputs[0];
  if (!builder.wants(x)) return;
  builder.contribute(
      x, builder.emit("all_to_all", {builder.gradient(node.outputs[0])}, {builder.type(x)}, over(node, false))[0]);
}

constexpr OpDef communication_op(std::string_view name, std::optional<CollKind> coll,
                                 void (*derive)(GradientBuilder&, const NodeView&) = nullptr) {
  return {.name = name, .op_class = OpClass::communication, .derive = derive, .coll = coll};
}

const OpDef kCommunicationOps[] = {
    communication_op("all_reduce", CollKind::all_reduce, derive_all_reduce),
    communication_op("reduce", CollKind::reduce),
    communication_op("broadcast", CollKind::broadcast),
    communication_op("all_gather", CollKind::all_gather, derive_all_gather),
    communication_op("gather", CollKind::gather),
    communication_op("scatter", CollKind::scatter),
    communication_op("reduce_scatter", CollKind::reduce_scatter, derive_reduce_scatter),
    communication_op("all_to_all", CollKind::all_to_all, derive_all_to_all),
    communication_op("barrier", CollKind::barrier),
    communication_op("all_gather_v", CollKind::all_gather_v),
    communication_op("send", CollKind::broadcast),
    communication_op("recv", CollKind::broadcast),
    communication_op("put", CollKind::broadcast),
    communication_op("signal", std::nullopt),
    communication_op("wait_signal", CollKind::broadcast),
    communication_op("enter", std::nullopt, derive_enter),
};

}  // namespace

std::span<const OpDef> communication() { return kCommunicationOps; }

}  // namespace prun::ops
