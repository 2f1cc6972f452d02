// Shape rules shared by ops.
#include "ir/ops/rules.h"

#include <fmt/format.h>

namespace prun::ops {

void require_inputs(std::string_view op, const Types& inputs, size_t least, size_t most) {
  if (inputs.size() >= least && inputs.size() <= most) return;
  std::string range = least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most);
  throw plan_error(fmt::format("{}: takes {} tensor{}, got {}", op, range, most == 1 ? "" : "s", inputs.size()));
}

void require_float(std::string_view op, std::string_view what, const TensorType& type) {
  if (computes(type.dtype)) return;
  throw plan_error(fmt::format("{}: {} is {}, should be f32, bf16 or f64", op, what, dtype_name(type.dtype)));
}

void require_dtype(std::string_view op, std::string_view what, const TensorType& type, Dtype dtype) {
  if (type.dtype == dtype) return;
  throw plan_error(fmt::format("{}: {} is {}, should be {}", op, what, dtype_name(type.dtype), dtype_name(dtype)));
}

void require_same_dtype(std::string_view op, std::string_view what, const TensorType& type, std::string_view other_what,
                        const TensorType& other) {
  if (type.dtype == other.dtype) return;
  throw plan_error(fmt::format("{}: {} is {}, {} is {}; they should be the same", op, what, dtype_name(type.dtype),
                               other_what, dtype_name(other.dtype)));
}

void require_same_shape(std::string_view op, std::string_view what, const TensorType& type, std::string_view other_what,
                        const TensorType& other) {
  if (type.shape == other.shape) return;
  throw plan_error(fmt::format("{}: {} is {}, {} is {}; they should be the same", op, what, shape_text(type.shape),
                               other_what, shape_text(other.shape)));
}

void require_rank(std::string_view op, std::string_view what, const TensorType& type, size_t rank) {
  if (type.shape.size() == rank) return;
  throw plan_error(
      fmt::format("{}: {} is {}, should have {} dim{}", op, what, shape_text(type.shape), rank, rank == 1 ? "" : "s"));
}

void require_rank_at_least(std::string_view op, std::string_view what, const TensorType& type, size_t rank) {
  if (type.shape.size() >= rank) return;
  throw plan_error(fmt::format("{}: {} is {}, should have at least {} dim{}", op, what, shape_text(type.shape), rank,
                               rank == 1 ? "" : "s"));
}

void require_chunks(std::string_view op, const Attrs& attrs, int64_t length) {
  int64_t chunks = attrs.integer("chunks", 1);
  if (chunks != 1 && chunks != 2) throw plan_error(fmt::format("{}: chunks is {}, should be 1 or 2", op, chunks));
  const bool run = attrs.text("tokens_axis").find(',') != std::string::npos;  // the rank has a run of the chunks
  if (!run && length % chunks != 0)
    throw plan_error(fmt::format("{}: {} tokens do not divide into {} chunks", op, length, chunks));
}

void require_end_of_model(std::string_view op, const GradientBuilder& builder, const NodeView& node) {
  for (ValueId output : node.outputs)
    if (builder.gradient(output) >= 0)
      throw plan_error(fmt::format("{}: a loss ends the model, nothing can be computed from it", op));
}

int64_t last_dim(const TensorType& type) { return type.shape.empty() ? 1 : type.shape.back(); }

int64_t row_count(const TensorType& type) {
  int64_t n = 1;
  for (size_t i = 0; i + 1 < type.shape.size(); ++i) n *= type.shape[i];
  return n;
}

Dtype wide(Dtype dtype) { return dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32; }

Attrs token_attrs(const Attrs& attrs) {
  Attrs out;
  for (const char* name : {"tokens_axis", "chunks"})
    if (attrs.has(name)) out.set(name, attrs.values().at(name));
  return out;
}

std::vector<sdk::OperandView> views_of(const Attrs& attrs) {
  const std::string text = attrs.text("views");
  if (auto views = sdk::parse_operand_views(text)) return *std::move(views);
  throw plan_error(fmt::format("'{}' lists no views of operands", text));
}

Shape viewed_shape(std::string_view op, const sdk::OperandView& view, const Shape& stored, size_t rank) {
  if (const auto elements = sdk::viewed_elements(view, stored, rank)) return elements->sizes;
  throw plan_error(
      fmt::format("{}: the view '{}' does not fit {}", op, sdk::operand_views_text({view}), shape_text(stored)));
}

Types own_inputs(const Types& inputs, const Attrs& attrs) {
  return {inputs.begin(), inputs.end() - (attrs.integer("continues") != 0 && !inputs.empty() ? 1 : 0)};
}

Shape shape_with_part(std::string_view op, const Attrs& attrs, size_t inputs, const Shape& shape) {
  Shape whole = attrs.integers("whole");
  const std::vector<sdk::OperandView> views = views_of(attrs);
  const sdk::OperandView* const view = sdk::view_of_operand(views, static_cast<int>(inputs));
  if (view == nullptr || viewed_shape(op, *view, whole, shape.size()) != shape)
    throw plan_error(fmt::format("{}: {} is no part of {}", op, shape_text(shape), shape_text(whole)));
  return whole;
}

Types viewed_types(const Types& inputs, const Attrs& attrs) {
  Types types = inputs;
  for (const sdk::OperandView& view : views_of(attrs)) {
    if (view.operand >= std::ssize(types)) continue;
    Shape& shape = types[view.operand].shape;
    for (size_t d = 0; d < view.dims.size() && d < shape.size(); ++d)
      shape[d] = view.dims[d].to < 0 ? 1 : view.dims[d].size == 0 ? shape[d] : view.dims[d].size;
  }
  return types;
}

Types written_types(size_t inputs, const Types& outputs, const Attrs& attrs) {
  Types types = outputs;
  const std::vector<sdk::OperandView> views = views_of(attrs);
  const sdk::OperandView* const view = sdk::view_of_operand(views, static_cast<int>(inputs));
  for (size_t d = 0; view != nullptr && !types.empty() && d < view->dims.size(); ++d)
    if (view->dims[d].size != 0) types[0].shape[d] = view->dims[d].size;
  return types;
}

Cost cost_of(double flops, const Types& inputs, const Types& outputs) {
  Cost cost{.flops = flops};
  for (const Types* types : {&inputs, &outputs})
    for (const TensorType& type : *types) cost.bytes += count(type) * static_cast<double>(dtype_bytes(type.dtype));
  return cost;
}

Cost product_cost(double flops, const Types& inputs, const Types& outputs) {
  Cost cost = cost_of(flops, inputs, outputs);
  cost.model = flops;
  return cost;
}

Attrs round_attrs(const Attrs& attrs) {
  Attrs round;
  if (in_rounds(attrs)) round.set("round", attrs.integer("round"));
  if (attrs.has("whole")) round.set("whole", attrs.integer("whole"));
  return round;
}

void require_round(std::string_view op, const Attrs& attrs) {
  if (const int64_t round = attrs.integer("round"); round < 0)
    throw plan_error(fmt::format("{}: the round is {}, should be at least 0", op, round));
}

int64_t kv_heads(const Attrs& attrs) { return attrs.integer("kv_heads", attrs.integer("heads", 1)); }

double count(const TensorType& type) { return static_cast<double>(element_count(type.shape)); }

}  // namespace prun::ops
