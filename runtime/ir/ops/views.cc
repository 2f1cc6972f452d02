// Views: reshape, permute, slice, pad, concat, expand, and rows by ids. All but the two sums only move elements.
//
// Surprising fact: their derivatives are each other: slice and pad, concat and slice, permute and its inverse; only
// expand and gather_rows, which repeat elements, need sums. A plan's sizes are a rank's share of the batch.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

constexpr size_t kMostDims = 8;  // kernels keep sizes and strides in arrays of this length

void require_few_dims(std::string_view op, const Shape& shape) {
  if (shape.size() <= kMostDims) return;
  throw plan_error(
      fmt::format("{}: {} has {} dims, at most {} are possible", op, shape_text(shape), shape.size(), kMostDims));
}

// Returns the attribute `dim`, one of x's dims.
size_t view_dim(std::string_view op, const TensorType& x, const Attrs& attrs) {
  require_rank_at_least(op, "the input", x, 1);
  require_few_dims(op, x.shape);
  const int64_t dim = attrs.integer("dim");
  if (dim >= 0 && dim < std::ssize(x.shape)) return dim;
  throw plan_error(
      fmt::format("{}: dim is {}, {} has dims 0 to {}", op, dim, shape_text(x.shape), std::ssize(x.shape) - 1));
}

void require_sizes(std::string_view op, const Shape& shape) {
  require_few_dims(op, shape);
  for (const int64_t size : shape)
    if (size < 1)
      throw plan_error(fmt::format("{}: {} has the size {}; sizes are at least 1", op, shape_text(shape), size));
  if (!is_countable(shape))
    throw plan_error(
        fmt::format("{}: {} has more than {} elements, the most of a tensor", op, shape_text(shape), kMostElements));
}

Types infer_reshape(const Types& inputs, const Attrs& attrs) {
  require_inputs("reshape", inputs, 1, 1);
  const Shape shape = sizes_of(attrs, "dims");
  require_sizes("reshape", shape);
  require_few_dims("reshape", inputs[0].shape);
  if (element_count(shape) != element_count(inputs[0].shape))
    throw plan_error(fmt::format("reshape: the input is {}, {} elements; {} has {}", shape_text(inputs[0].shape),
                                 element_count(inputs[0].shape), shape_text(shape), element_count(shape)));
  return {{inputs[0].dtype, shape}};
}

Types infer_permute(const Types& inputs, const Attrs& attrs) {
  require_inputs("permute", inputs, 1, 1);
  const Shape& x = inputs[0].shape;
  require_few_dims("permute", x);
  const Shape order = sizes_of(attrs, "order");
  Shape sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < std::max(sorted.size(), x.size()); i++)
    if (sorted.size() != x.size() || sorted[i] != static_cast<int64_t>(i))
      throw plan_error(
          fmt::format("permute: {} is no order of the {} dims of {}", shape_text(order), x.size(), shape_text(x)));
  Shape y;
  for (const int64_t dim : order) y.push_back(x[dim]);
  return {{inputs[0].dtype, y}};
}

Types infer_slice(const Types& inputs, const Attrs& attrs) {
  require_inputs("slice", inputs, 1, 1);
  Shape y = inputs[0].shape;
  const size_t dim = view_dim("slice", inputs[0], attrs);
  const int64_t start = attrs.integer("start"), size = attrs.integer("size");
  if (start < 0 || size < 1 || start >= y[dim] || size > y[dim] - start)
    throw plan_error(
        fmt::format("slice: {} elements from {} on are no part of dim {} of {}", size, start, dim, shape_text(y)));
  y[dim] = size;
  return {{inputs[0].dtype, y}};
}

Types infer_pad(const Types& inputs, const Attrs& attrs) {
  require_inputs("pad", inputs, 1, 1);
  Shape y = inputs[0].shape;
  const size_t dim = view_dim("pad", inputs[0], attrs);
  const int64_t before = attrs.integer("before"), after = attrs.integer("after");
  if (before < 0 || after < 0 || before > kMostElements || after > kMostElements)
    throw plan_error(fmt::format("pad: {} elements before and {} after dim {} of {}; both should be 0 to {}", before,
                                 after, dim, shape_text(y), kMostElements));
  y[dim] += before + after;
  require_sizes("pad", y);
  return {{inputs[0].dtype, y}};
}

Types infer_concat(const Types& inputs, const Attrs& attrs) {
  require_inputs("concat", inputs, 1, 4096);
  Shape y = inputs[0].shape;
  const size_t dim = view_dim("concat", inputs[0], attrs);
  for (size_t i = 1; i < inputs.size(); i++) {
    const std::string what = fmt::format("tensor {}", i + 1);
    require_same_dtype("concat", "tensor 1", inputs[0], what, inputs[i]);
    Shape other = inputs[i].shape;
    const int64_t size = dim < other.size() ? other[dim] : 0;
    if (dim < other.size()) other[dim] = inputs[0].shape[dim];
    if (other != inputs[0].shape)
      throw plan_error(fmt::format("concat: tensor 1 is {}, tensor {} is {}; only their dim {} may differ",
                                   shape_text(inputs[0].shape), i + 1, shape_text(inputs[i].shape), dim));
    y[dim] += size;
    require_sizes("concat", y);
  }
  return {{inputs[0].dtype, y}};
}

Types infer_expand(const Types& inputs, const Attrs& attrs) {
  require_inputs("expand", inputs, 1, 1);
  const Shape& x = inputs[0].shape;
  const Shape y = sizes_of(attrs, "dims");
  require_sizes("expand", y);
  for (size_t i = 0; i < std::max(x.size(), y.size()); i++)
    if (x.size() != y.size() || (x[i] != y[i] && x[i] != 1))
      throw plan_error(fmt::format("expand: {} cannot become {}: dims of size 1 repeat, the others keep their sizes",
                                   shape_text(x), shape_text(y)));
  return {{inputs[0].dtype, y}};
}

Types infer_expand_grad(const Types& inputs, const Attrs& attrs) {
  require_inputs("expand_grad", inputs, 1, 1);
  const Shape dx = sizes_of(attrs, "dims");
  Attrs back;
  back.set("dims", inputs[0].shape);
  infer_expand({{inputs[0].dtype, dx}}, back);
  return {{inputs[0].dtype, dx}};
}

// Returns the number of leading dims that x and ids share; throws plan_error if they do not match.
size_t shared_dims(std::string_view op, const TensorType& x, const TensorType& ids, size_t x_dims) {
  require_dtype(op, "the id tensor", ids, Dtype::i32);
  require_rank_at_least(op, "the id tensor", ids, 1);
  require_few_dims(op, x.shape);
  const size_t shared = ids.shape.size() - 1;
  if (x.shape.size() < x_dims + shared || !std::equal(ids.shape.begin(), ids.shape.end() - 1, x.shape.begin()))
    throw plan_error(
        fmt::format("{}: the ids are {}, the input is {}; the dims before the last one of the ids should "
                    "be the first ones of the input",
                    op, shape_text(ids.shape), shape_text(x.shape)));
  return shared;
}

Types infer_gather_rows(const Types& inputs, const Attrs&) {
  require_inputs("gather_rows", inputs, 2, 2);
  const TensorType &x = inputs[0], &ids = inputs[1];
  const size_t shared = shared_dims("gather_rows", x, ids, 1);
  Shape y = x.shape;
  y[shared] = ids.shape.back();
  require_sizes("gather_rows", y);
  return {{x.dtype, y}};
}

Types infer_gather_rows_grad(const Types& inputs, const Attrs& attrs) {
  require_inputs("gather_rows_grad", inputs, 2, 2);
  const TensorType &ids = inputs[0], &dy = inputs[1];
  Shape dx = dy.shape;
  dx[shared_dims("gather_rows_grad", dy, ids, 1)] = attrs.integer("rows");
  require_sizes("gather_rows_grad", dx);
  return {{dy.dtype, dx}};
}

// Contributes `op` of the gradient of the output to input `i`.
void derive_view(GradientBuilder& builder, const NodeView& node, size_t i, const OpDef& op, Attrs attrs) {
  const ValueId x = node.inputs[i];
  if (!builder.wants(x)) return;
  const TensorType type{builder.type(node.outputs[0]).dtype, builder.type(x).shape};
  builder.contribute(x, builder.emit(op, {builder.gradient(node.outputs[0])}, {type}, std::move(attrs))[0]);
}

void derive_reshape(GradientBuilder& builder, const NodeView& node) {
  Attrs attrs;
  attrs.set("dims", builder.type(node.inputs[0]).shape);
  if (node.attrs.has("axis")) {
    attrs.set("axis", node.attrs.text("axis"));
    attrs.set("from", node.attrs.integer("to"));
    attrs.set("to", node.attrs.integer("from"));
  }
  derive_view(builder, node, 0, reshape, attrs);
}

void derive_permute(GradientBuilder& builder, const NodeView& node) {
  const Shape order = sizes_of(node.attrs, "order");
  Shape inverse(order.size());
  for (size_t i = 0; i < order.size(); i++) inverse[order[i]] = static_cast<int64_t>(i);
  Attrs attrs;
  attrs.set("order", inverse);
  derive_view(builder, node, 0, permute, attrs);
}

void derive_slice(GradientBuilder& builder, const NodeView& node) {
  const int64_t dim = node.attrs.integer("dim"), start = node.attrs.integer("start"), size = node.attrs.integer("size");
  Attrs attrs;
  attrs.set("dim", dim);
  attrs.set("before", start);
  attrs.set("after", builder.type(node.inputs[0]).shape[dim] - start - size);
  derive_view(builder, node, 0, pad, attrs);
}

Attrs slice_attrs(int64_t dim, int64_t start, int64_t size) {
  Attrs attrs;
  attrs.set("dim", dim);
  attrs.set("start", start);
  attrs.set("size", size);
  return attrs;
}

void derive_pad(GradientBuilder& builder, const NodeView& node) {
  const int64_t dim = node.attrs.integer("dim");
  derive_view(builder, node, 0, slice,
              slice_attrs(dim, node.attrs.integer("before"), builder.type(node.inputs[0]).shape[dim]));
}

void derive_concat(GradientBuilder& builder, const NodeView& node) {
  const int64_t dim = node.attrs.integer("dim");
  int64_t start = 0;
  for (size_t i = 0; i < node.inputs.size(); i++) {
    const int64_t size = builder.type(node.inputs[i]).shape[dim];
    derive_view(builder, node, i, slice, slice_attrs(dim, start, size));
    start += size;
  }
}

void derive_expand(GradientBuilder& builder, const NodeView& node) {
  Attrs attrs = node.attrs;
  attrs.set("dims", builder.type(node.inputs[0]).shape);
  derive_view(builder, node, 0, expand_grad, attrs);
}

void derive_gather_rows(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0], ids = node.inputs[1];
  if (!builder.wants(x)) return;
  Attrs attrs = node.attrs;
  attrs.set("rows", builder.type(x).shape[builder.type(ids).shape.size() - 1]);
  builder.contribute(
      x, builder.emit(gather_rows_grad, {ids, builder.gradient(node.outputs[0])}, {builder.type(x)}, attrs)[0]);
}

// Reads only the elements that it writes.
Cost cost_copied(const Types&, const Types& outputs, const Attrs&) { return cost_of(0, outputs, outputs); }

Cost cost_gather_rows(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_of(0, {inputs[1], outputs[0]}, outputs);
}

Cost cost_gather_rows_grad(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_of(count(inputs[1]), inputs, outputs);
}

}  // namespace

// A list of a plan is read as numbers (ir/attrs.h).
Shape sizes_of(const Attrs& attrs, std::string_view name) {
  Shape sizes;
  for (const double size : attrs.numbers(name)) sizes.push_back(static_cast<int64_t>(size));
  return sizes;
}

const OpDef reshape = {.name = "reshape",
                       .distribution = Distribution::own,
                       .moves = true,
                       .infer = infer_reshape,
                       .derive = derive_reshape};
const OpDef permute = {.name = "permute",
                       .distribution = Distribution::own,
                       .moves = true,
                       .infer = infer_permute,
                       .derive = derive_permute};
const OpDef slice = {.name = "slice",
                     .distribution = Distribution::own,
                     .moves = true,
                     .infer = infer_slice,
                     .derive = derive_slice,
                     .cost = cost_copied};
const OpDef pad = {
    .name = "pad", .distribution = Distribution::own, .moves = true, .infer = infer_pad, .derive = derive_pad};
const OpDef concat = {
    .name = "concat", .distribution = Distribution::own, .moves = true, .infer = infer_concat, .derive = derive_concat};
const OpDef expand = {
    .name = "expand", .distribution = Distribution::own, .moves = true, .infer = infer_expand, .derive = derive_expand};
const OpDef expand_grad = {.name = "expand_grad",
                           .role = OpRole::derivative,
                           .distribution = Distribution::whole,
                           .infer = infer_expand_grad,
                           .cost = per_input<1>};
const OpDef gather_rows = {.name = "gather_rows",
                           .distribution = Distribution::own,
                           .moves = true,
                           .infer = infer_gather_rows,
                           .derive = derive_gather_rows,
                           .cost = cost_gather_rows};
const OpDef gather_rows_grad = {.name = "gather_rows_grad",
                                .role = OpRole::derivative,
                                .distribution = Distribution::whole,
                                .infer = infer_gather_rows_grad,
                                .cost = cost_gather_rows_grad};

}  // namespace prun::ops
