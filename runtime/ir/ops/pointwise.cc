// pointwise: a program of elementwise functions over inputs that broadcast (prun/sdk/pointwise.h).
//
// Surprising fact: a derivative is a program, too; it computes forward again from the inputs instead of retaining
// values between instructions. The gradient of an input that was broadcast is then summed over the broadcast dims.
#include "ir/pointwise.h"

#include <fmt/format.h>

#include <numeric>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

std::vector<int64_t> masks_of(const Attrs& attrs) {
  return attrs.has("over") ? attrs.integers("over") : std::vector<int64_t>();
}

Types infer_pointwise(const Types& tensors, const Attrs& attrs) {
  const Types inputs = own_inputs(tensors, attrs);
  require_inputs("pointwise", inputs, 1, sdk::kMostPointwiseInputs);
  std::string problem;
  if (!sdk::parse_pointwise(attrs.text("program"), static_cast<int>(inputs.size()), &problem))
    throw plan_error(fmt::format("pointwise: in the program '{}' {}", attrs.text("program"), problem));
  const std::vector<int64_t> masks = masks_of(attrs);
  Shape shape = attrs.has("shape") ? attrs.integers("shape") : Shape();
  if (!masks.empty() && (masks.size() != inputs.size() || !attrs.has("shape")))
    throw plan_error("pointwise: 'over' needs a number for each input, and 'shape'");
  const std::vector<sdk::OperandView> views = views_of(attrs);
  if (!views.empty() && !attrs.has("shape")) throw plan_error("pointwise: 'views' need 'shape'");
  for (const TensorType& input : inputs) {
    require_float("pointwise", "the input", input);
    require_same_dtype("pointwise", "the first input", inputs[0], "another", input);
    if (!attrs.has("shape") && input.shape.size() > shape.size())
      shape.insert(shape.begin(), input.shape.size() - shape.size(), 1);
  }
  if (shape.size() > sdk::kMostPointwiseDims)
    throw plan_error(fmt::format("pointwise: {} has more than {} dims", shape_text(shape), sdk::kMostPointwiseDims));
  for (size_t k = 0; k < inputs.size(); ++k) {
    const sdk::OperandView* const view = sdk::view_of_operand(views, static_cast<int>(k));
    const Shape mine =
        view != nullptr ? viewed_shape("pointwise", *view, inputs[k].shape, shape.size()) : inputs[k].shape;
    const int64_t mask = masks.empty() || view != nullptr ? -1 : masks[k];
    const std::vector<int> places = sdk::pointwise_places(mine.size(), shape.size(), mask);
    if (places.size() != mine.size())
      throw plan_error(fmt::format("pointwise: {} does not have the dims of {}", shape_text(mine), shape_text(shape)));
    for (size_t d = 0; d < mine.size(); ++d) {
      int64_t& size = shape[places[d]];
      if (size == 1 && !attrs.has("shape")) size = mine[d];
      if (mine[d] != size && mine[d] != 1)
        throw plan_error(fmt::format("pointwise: {} does not broadcast with {}: a dim should be {} or 1, not {}",
                                     shape_text(mine), shape_text(inputs[0].shape), size, mine[d]));
    }
  }
  if (attrs.has("whole")) shape = shape_with_part("pointwise", attrs, inputs.size(), shape);
  return {{inputs[0].dtype, shape}};
}

// Returns the gradient, of the output's shape, summed over the dims along which input `k` was broadcast.
ValueId summed(GradientBuilder& builder, ValueId gradient, const TensorType& input, int64_t mask) {
  const Shape& whole = builder.type(gradient).shape;
  const std::vector<int> places = sdk::pointwise_places(input.shape.size(), whole.size(), mask);
  std::vector<int64_t> dims, kept;
  for (size_t d = 0, mine = 0; d < whole.size(); ++d) {
    const bool has = mine < places.size() && places[mine] == static_cast<int>(d);
    const bool broadcast = !has || (input.shape[mine] == 1 && whole[d] != 1);
    if (has) ++mine;
    if (!broadcast) continue;
    dims.push_back(static_cast<int64_t>(d));
    if (has) kept.push_back(static_cast<int64_t>(d));
  }
  if (dims.empty()) return gradient;
  Attrs attrs;
  attrs.set("op", std::string("sum"));
  attrs.set("dims", dims);
  if (!kept.empty()) attrs.set("kept", kept);
  attrs.set("wide", int64_t{1});
  return builder.emit(reduce_dims, {gradient}, {wide_like(input)}, attrs)[0];
}

void derive_pointwise(GradientBuilder& builder, const NodeView& node) {
  const ValueId y = node.outputs[0], dy = builder.gradient(y);
  const int inputs = static_cast<int>(node.inputs.size());
  const sdk::PointwiseProgram program = pointwise_program(node.attrs, inputs);
  std::vector<int64_t> masks = masks_of(node.attrs);
  const Shape shape = builder.type(y).shape;
  for (int k = 0; k < inputs; ++k) {
    const ValueId x = node.inputs[k];
    if (!builder.wants(x)) continue;
    std::optional<sdk::PointwiseProgram> derivative = pointwise_derivative(program, inputs, k);
    if (!derivative) continue;
    std::vector<int> kept;
    drop_unread_inputs(*derivative, inputs + 1, kept);
    std::vector<ValueId> reads;
    std::vector<int64_t> over;
    bool shaped = false;  // an input has the output's shape
    for (const int i : kept) {
      reads.push_back(i == inputs ? dy : node.inputs[i]);
      over.push_back(i == inputs ? (int64_t{1} << shape.size()) - 1 : masks.empty() ? -1 : masks[i]);
      shaped = shaped || builder.type(reads.back()).shape == shape;
    }
    const bool same = sdk::pointwise_text(*derivative) == "mul x0 1" && reads[0] == dy;
    ValueId gradient = dy;
    if (!same) {
      Attrs attrs;
      attrs.set("program", sdk::pointwise_text(*derivative));
      if (!masks.empty()) attrs.set("over", over);
      if (!masks.empty() || !shaped) attrs.set("shape", shape);
      gradient = builder.emit(pointwise, reads, {{builder.type(x).dtype, shape}}, attrs)[0];
    }
    builder.contribute(x, summed(builder, gradient, builder.type(x), masks.empty() ? -1 : masks[k]));
  }
}

Cost pointwise_cost(const Types& inputs, const Types& outputs, const Attrs& attrs) {
  const Types own = own_inputs(inputs, attrs), written = written_types(own.size(), outputs, attrs);
  const double instructions = static_cast<double>(pointwise_program(attrs, own.size()).size());
  return cost_of(written.empty() ? 0 : instructions * count(written[0]), viewed_types(own, attrs), written);
}

}  // namespace

const OpDef pointwise = {.name = "pointwise",
                         .distribution = Distribution::own,
                         .infer = infer_pointwise,
                         .derive = derive_pointwise,
                         .cost = pointwise_cost};

}  // namespace prun::ops
