// Rules that shape inference shares between ops, and counts for costs.
//
// Every rule throws plan_error with a sentence such as "linear: the input's last dim is 250, the weight has 256 rows":
// the op, the given size, the expected size. The caller adds file and line.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/ops.h"
#include "prun/sdk/operand_view.h"

namespace prun::ops {

using Types = std::vector<TensorType>;

// Requires `least` to `most` inputs.
void require_inputs(std::string_view op, const Types& inputs, size_t least, size_t most);
// Requires f64, f32 or bf16. `what` is a noun such as "the input".
void require_float(std::string_view op, std::string_view what, const TensorType& type);
void require_dtype(std::string_view op, std::string_view what, const TensorType& type, Dtype dtype);
void require_same_dtype(std::string_view op, std::string_view what, const TensorType& type, std::string_view other_what,
                        const TensorType& other);
void require_same_shape(std::string_view op, std::string_view what, const TensorType& type, std::string_view other_what,
                        const TensorType& other);
void require_rank(std::string_view op, std::string_view what, const TensorType& type, size_t rank);
void require_rank_at_least(std::string_view op, std::string_view what, const TensorType& type, size_t rank);
// Requires that `chunks` of attribute tokens_axis is 1 or 2, and that `length` tokens divide into them, unless further
// axes of tokens_axis divide the chunks.
void require_chunks(std::string_view op, const Attrs& attrs, int64_t length);
// Requires x [B, T, width], and i32 positions [B, T] of its tokens.
void require_positions(std::string_view op, const TensorType& x, const TensorType& at);
// Requires that no gradient arrives at a loss, because it is differentiated with seed 1.
void require_end_of_model(std::string_view op, const GradientBuilder& builder, const NodeView& node);

int64_t last_dim(const TensorType& type);
int64_t row_count(const TensorType& type);  // product of all dims but the last
// Returns the dtype of statistics, losses and parameter gradients: f32, or f64 in f64 plans.
Dtype wide(Dtype dtype);
inline TensorType wide_like(const TensorType& type) { return {wide(type.dtype), type.shape}; }

// Returns the attributes that select the rank's tokens of a sample (tokens_axis and chunks), for a derivative.
Attrs token_attrs(const Attrs& attrs);

// Returns whether an op of experts processes one round of a dropless mixture: of each expert's choices, those in the
// round's window of as many positions as an expert has slots.
inline bool in_rounds(const Attrs& attrs) { return attrs.has("round"); }
// Returns the attributes of the round, for a derivative.
Attrs round_attrs(const Attrs& attrs);
void require_round(std::string_view op, const Attrs& attrs);

// Returns the number of key and value heads; fewer than `heads` if several query heads share one.
int64_t kv_heads(const Attrs& attrs);

// Returns a list of sizes or dims; its numbers are whole.
Shape sizes_of(const Attrs& attrs, std::string_view name);

// Returns the attribute `views` (prun/sdk/operand_view.h); throws plan_error if its text is no list of views.
std::vector<sdk::OperandView> views_of(const Attrs& attrs);
// Returns the shape, of `rank` dims, that a view reads of a tensor.
Shape viewed_shape(std::string_view op, const sdk::OperandView& view, const Shape& stored, size_t rank);
// Returns the inputs without the tensor of which an op with the attribute `continues` writes a part.
Types own_inputs(const Types& inputs, const Attrs& attrs);
// Returns the shape of the tensor of which an op with the attribute `whole` writes a part, that of its view, of shape
// `shape`.
Shape shape_with_part(std::string_view op, const Attrs& attrs, size_t inputs, const Shape& shape);
// Returns the inputs with the elements that the op reads of each.
Types viewed_types(const Types& inputs, const Attrs& attrs);
// Returns the outputs with the shapes of the parts that an op of so many inputs writes.
Types written_types(size_t inputs, const Types& outputs, const Attrs& attrs);

// Returns `flops`, and the bytes of all tensors, each once.
Cost cost_of(double flops, const Types& inputs, const Types& outputs);
// Returns the cost of GEMMs, all of whose FLOPs count for the model.
Cost product_cost(double flops, const Types& inputs, const Types& outputs);
double count(const TensorType& type);
// Returns the cost of `per_element` FLOPs per element of the first output (of the first input if there is no output).
template <int per_element>
Cost per_output(const Types& inputs, const Types& outputs, const Attrs&) {
  const Types& counted = outputs.empty() ? inputs : outputs;
  return cost_of(counted.empty() ? 0 : per_element * count(counted[0]), inputs, outputs);
}
// Returns the cost of `per_element` FLOPs per element of all inputs.
template <int per_element>
Cost per_input(const Types& inputs, const Types& outputs, const Attrs&) {
  double n = 0;
  for (const TensorType& type : inputs) n += count(type);
  return cost_of(per_element * n, inputs, outputs);
}

}  // namespace prun::ops
