// Mixture of experts: route selects k experts for each token, dispatch copies tokens to the experts' slots, combine
// returns the weighted sum of the results. Shazeer et al., "Outrageously large neural networks", 2017; slots and the
// load-balancing loss are those of GShard (2020) and Switch Transformers (2021).
//
// Surprising fact: dividing by the sum of the chosen probabilities makes the weights a softmax over the chosen logits
// alone. The others therefore get a gradient from the losses of the router only, and with one choice the weight is 1.
//
// Dropless: route numbers slots for all tokens of each expert, and `round` r of the other ops takes those at positions
// [r·C, (r + 1)·C) of an expert. The first round to run writes its results, and the others write over them.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

// Returns the slots of one expert; capacity 0 = as many as tokens, so that none is dropped.
int64_t capacity_of(std::string_view op, const Attrs& attrs, int64_t tokens) {
  int64_t capacity = attrs.integer("capacity");
  if (capacity < 0)
    throw plan_error(fmt::format("{}: capacity is {}, should be at least 1 slot, or 0 for enough", op, capacity));
  return capacity == 0 ? tokens : capacity;
}

void require_slots(std::string_view op, const TensorType& slots) {
  require_dtype(op, "the slot tensor", slots, Dtype::i32);
  require_rank(op, "the slot tensor", slots, 2);
}

// Whether some tokens do not count: the last operand has the run of each token's document (batch.documents).
bool has_runs(const Attrs& attrs) { return attrs.integer("runs") != 0; }

void require_runs(std::string_view op, const TensorType& runs, const TensorType& logits) {
  require_dtype(op, "the tensor of documents", runs, Dtype::i32);
  if (runs.shape.empty() || last_dim(runs) != 2 || row_count(runs) != row_count(logits))
    throw plan_error(
        fmt::format("{}: the documents are {}, should be batch.documents, two numbers for each of {} tokens", op,
                    shape_text(runs.shape), row_count(logits)));
}

// Throws unless the chosen experts fit into the groups that are kept.
void require_groups(const Attrs& attrs, int64_t experts, int64_t k) {
  constexpr int64_t kMost = 32;  // the lanes of a warp, each of which has one
  const int64_t groups = attrs.integer("groups", 1), kept = attrs.integer("groups_kept", groups);
  if (groups < 1 || groups > kMost || experts % groups != 0)
    throw plan_error(
        fmt::format("route: {} groups of {} experts, should be a divisor of them, at most {}", groups, experts, kMost));
  if (kept < 1 || kept > groups)
    throw plan_error(fmt::format("route: {} of {} groups are kept, should be between 1 and {}", kept, groups, groups));
  if (k > kept * (experts / groups))
    throw plan_error(fmt::format("route: {} choices, and the {} groups that are kept have {} experts", k, kept,
                                 kept * (experts / groups)));
}

Types infer_route(const Types& inputs, const Attrs& attrs) {
  const bool biased = attrs.integer("biased") != 0;
  const size_t count = 1 + (biased ? 1 : 0) + (has_runs(attrs) ? 1 : 0);
  require_inputs("route", inputs, count, count);
  const TensorType& logits = inputs[0];
  require_float("route", "the logit tensor", logits);
  require_rank("route", "the logit tensor", logits, 3);
  int64_t experts = last_dim(logits), tokens = row_count(logits), k = attrs.integer("k", 1);
  if (k < 1 || k > experts)
    throw plan_error(fmt::format("route: {} choices of {} experts, should be between 1 and {}", k, experts, experts));
  require_groups(attrs, experts, k);
  if (biased && (inputs[1].shape != Shape{experts} || inputs[1].dtype != wide(logits.dtype)))
    throw plan_error(fmt::format("route: the bias is {}{}, should be {}[{}], a number for each expert",
                                 dtype_name(inputs[1].dtype), shape_text(inputs[1].shape),
                                 dtype_name(wide(logits.dtype)), experts));
  if (has_runs(attrs)) require_runs("route", inputs.back(), logits);
  if (const std::string scores = attrs.text("scores", "softmax"); scores != "softmax" && scores != "sigmoid")
    throw plan_error(fmt::format("route: scores are '{}', should be softmax or sigmoid", scores));
  if (attrs.number("factor", 1) <= 0)
    throw plan_error(fmt::format("route: the factor is {}, should be above 0", attrs.number("factor", 1)));
  int64_t capacity = capacity_of("route", attrs, tokens);
  if (experts * capacity > INT32_MAX)
    throw plan_error(fmt::format("route: {} experts of {} slots each are too many to count", experts, capacity));
  Dtype dtype = wide(logits.dtype);
  return {{dtype, {tokens, k}}, {Dtype::i32, {tokens, k}}, {dtype, {experts}}, {Dtype::i32, {experts, 1}}};
}

void derive_route(GradientBuilder& builder, const NodeView& node) {
  ValueId logits = node.inputs[0], weights = node.outputs[0];
  if (!builder.wants(logits) || builder.gradient(weights) < 0) return;
  std::vector<ValueId> inputs = {logits, weights, builder.gradient(weights), node.outputs[1]};
  if (node.attrs.number("aux") != 0 || node.attrs.number("z") != 0) inputs.push_back(node.outputs[2]);
  Attrs attrs = node.attrs;
  attrs.set("k", node.attrs.integer("k", 1));
  for (const char* of_choice : {"biased", "groups", "groups_kept"}) attrs.erase(of_choice);
  builder.contribute(logits, builder.emit(route_grad, inputs, {builder.type(logits)}, attrs)[0]);
}

Types infer_softmax_sums(const Types& inputs, const Attrs& attrs) {
  const size_t count = has_runs(attrs) ? 2 : 1;
  require_inputs("softmax_sums", inputs, count, count);
  if (has_runs(attrs)) require_runs("softmax_sums", inputs[1], inputs[0]);
  require_float("softmax_sums", "the logit tensor", inputs[0]);
  require_rank_at_least("softmax_sums", "the logit tensor", inputs[0], 2);
  return {{wide(inputs[0].dtype), {last_dim(inputs[0])}}};
}

void derive_softmax_sums(GradientBuilder& builder, const NodeView& node) {
  const ValueId logits = node.inputs[0];
  if (!builder.wants(logits)) return;
  const ValueId ds = builder.gradient(node.outputs[0]);
  std::vector<ValueId> inputs = node.inputs;
  inputs.insert(inputs.begin() + 1, ds);
  builder.contribute(logits, builder.emit(softmax_sums_grad, inputs, {builder.type(logits)}, node.attrs)[0]);
}

Types infer_dispatch(const Types& inputs, const Attrs& attrs) {
  require_inputs("dispatch", inputs, 2, 2);
  const TensorType &x = inputs[0], &slots = inputs[1];
  require_float("dispatch", "the input", x);
  require_rank("dispatch", "the input", x, 3);
  require_slots("dispatch", slots);
  if (slots.shape[0] != row_count(x))
    throw plan_error(
        fmt::format("dispatch: the input has {} tokens, the slots are of {}", row_count(x), slots.shape[0]));
  int64_t experts = attrs.integer("experts");
  if (experts < 1) throw plan_error(fmt::format("dispatch: {} experts; at least 1 is needed", experts));
  require_round("dispatch", attrs);
  return {{x.dtype, {experts, capacity_of("dispatch", attrs, slots.shape[0]), last_dim(x)}}};
}

// Whether the op's round adds to the gradient of the rounds whose backward is before it. Round 0, the last to run, has
// added the first gradient that is its own; the later ones may write over it.
bool follows(const GradientBuilder& builder, const Attrs& attrs, ValueId value) {
  return attrs.integer("round") > 0 && !builder.gradient(value).none();
}

void derive_dispatch(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0], slots = node.inputs[1];
  if (!builder.wants(x)) return;
  ValueId dy = builder.gradient(node.outputs[0]);
  const Attrs attrs = round_attrs(node.attrs);
  if (follows(builder, node.attrs, x))
    builder.replace(x, builder.emit(dispatch_grad, {slots, dy, builder.gradient(x)}, {builder.type(x)}, attrs)[0]);
  else
    builder.contribute(x, builder.emit(dispatch_grad, {slots, dy}, {builder.type(x)}, attrs)[0]);
}

Types infer_combine(const Types& inputs, const Attrs& attrs) {
  require_inputs("combine", inputs, 3, in_rounds(attrs) ? 4 : 3);
  require_round("combine", attrs);
  const TensorType &y = inputs[0], &slots = inputs[1], &weights = inputs[2];
  require_float("combine", "the input", y);
  require_rank("combine", "the input", y, 3);
  require_slots("combine", slots);
  require_dtype("combine", "the weight tensor", weights, wide(y.dtype));
  require_same_shape("combine", "the slot tensor", slots, "the weight tensor", weights);
  int64_t batch = attrs.integer("batch", 1), tokens = attrs.integer("tokens", slots.shape[0]);
  if (batch < 1 || tokens < 1 || batch * tokens != slots.shape[0])
    throw plan_error(fmt::format("combine: the slots are of {} tokens, the result of {} samples of {}", slots.shape[0],
                                 batch, tokens));
  const TensorType result{y.dtype, {batch, tokens, last_dim(y)}};
  if (inputs.size() > 3) {
    require_same_shape("combine", "the sum of other rounds", inputs[3], "the result", result);
    require_same_dtype("combine", "the sum of other rounds", inputs[3], "the input", y);
  }
  return {result};
}

void derive_combine(GradientBuilder& builder, const NodeView& node) {
  ValueId y = node.inputs[0], slots = node.inputs[1], weights = node.inputs[2];
  const ValueId dout = builder.gradient(node.outputs[0]);
  if (node.inputs.size() > 3 && builder.wants(node.inputs[3])) builder.contribute(node.inputs[3], dout);
  if (!builder.wants(y) && !builder.wants(weights)) return;
  std::vector<ValueId> inputs = {y, slots, weights, dout};
  const bool later = follows(builder, node.attrs, weights);
  if (later) inputs.push_back(builder.gradient(weights));
  std::vector<ValueId> grads =
      builder.emit(combine_grad, inputs, {builder.type(y), builder.type(weights)}, round_attrs(node.attrs));
  if (builder.wants(y)) builder.contribute(y, grads[0]);
  if (!builder.wants(weights)) return;
  later ? builder.replace(weights, grads[1]) : builder.contribute(weights, grads[1]);
}

// Only the chosen rows are read or written, and all slots are cleared: each element [N,k] of `slots` is one row of
// `width` multiply-adds.
double chosen(const TensorType& slots, const TensorType& row) {
  return count(slots) * static_cast<double>(last_dim(row));
}
Cost cost_moved(const TensorType& slots, const TensorType& row, double flops, const Types& others) {
  Cost cost = cost_of(flops, {slots}, others);
  cost.bytes += chosen(slots, row) * static_cast<double>(dtype_bytes(row.dtype));
  return cost;
}
Cost cost_dispatch(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_moved(inputs[1], inputs[0], 0, outputs);
}
Cost cost_dispatch_grad(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_moved(inputs[0], inputs[1], chosen(inputs[0], inputs[1]), outputs);
}
Cost cost_combine(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_moved(inputs[1], inputs[0], 2 * chosen(inputs[1], inputs[0]), outputs);
}
Cost cost_combine_grad(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_moved(inputs[1], inputs[0], 3 * chosen(inputs[1], inputs[0]), {inputs[3], outputs[0], outputs[1]});
}

}  // namespace

const OpDef route = {.name = "route",
                     .distribution = Distribution::whole,
                     .side_first = 2,
                     .infer = infer_route,
                     .derive = derive_route,
                     .cost = per_input<4>};
const OpDef route_grad = {
    .name = "route_grad",
    .role = OpRole::derivative,
    .shapes = "logits [..,E], weights #R*k, dweights as weights, slots as weights, counts? #E -> dlogits as logits",
    .cost = per_output<8>};
const OpDef softmax_sums = {.name = "softmax_sums",
                            .distribution = Distribution::whole,
                            .infer = infer_softmax_sums,
                            .derive = derive_softmax_sums,
                            .cost = per_input<4>};
const OpDef softmax_sums_grad = {.name = "softmax_sums_grad",
                                 .role = OpRole::derivative,
                                 .shapes = "logits [..,E], ds #E, runs? #R*2 -> dlogits as logits",
                                 .cost = per_output<6>};
const OpDef dispatch = {.name = "dispatch",
                        .distribution = Distribution::own,
                        .infer = infer_dispatch,
                        .derive = derive_dispatch,
                        .cost = cost_dispatch};
const OpDef dispatch_grad = {.name = "dispatch_grad",
                             .role = OpRole::derivative,
                             .shapes = "slots [N,K], dy [E,C,D], sum? #N*D -> dx #N*D",
                             .cost = cost_dispatch_grad};
const OpDef combine = {.name = "combine",
                       .distribution = Distribution::own,
                       .infer = infer_combine,
                       .derive = derive_combine,
                       .cost = cost_combine};
const OpDef combine_grad = {
    .name = "combine_grad",
    .role = OpRole::derivative,
    .shapes = "y [E,C,D], slots [N,K], weights as slots, dout #N*D, sum? as slots -> dy as y, dweights as weights",
    .cost = cost_combine_grad};

}  // namespace prun::ops
