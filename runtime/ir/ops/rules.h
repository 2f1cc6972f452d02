// The small rules that shape inference shares between ops, and the counts that costs are made of.
//
// Every rule throws plan_error with a sentence of the form "linear: the input's last dim is 250, the weight has 256
// rows": the op, what was given, what it should be. The caller adds file and line.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/ops.h"

namespace prun::ops {

using Types = std::vector<TensorType>;

// Between `least` and `most` inputs.
void require_inputs(std::string_view op, const Types& inputs, size_t least, size_t most);
// f64, f32 or bf16. `what` is a noun as in "the input".
void require_float(std::string_view op, std::string_view what, const TensorType& type);
void require_dtype(std::string_view op, std::string_view what, const TensorType& type, Dtype dtype);
void require_same_dtype(std::string_view op, std::string_view what, const TensorType& type, std::string_view other_what,
                        const TensorType& other);
void require_same_shape(std::string_view op, std::string_view what, const TensorType& type, std::string_view other_what,
                        const TensorType& other);
void require_rank(std::string_view op, std::string_view what, const TensorType& type, size_t rank);
void require_rank_at_least(std::string_view op, std::string_view what, const TensorType& type, size_t rank);
// `chunks` of attribute tokens_axis: 1 or 2, and `length` tokens divide into them, unless further axes of tokens_axis
// divide the chunks.
void require_chunks(std::string_view op, const Attrs& attrs, int64_t length);
// A loss is differentiated with seed 1: no gradient may arrive at it.
void require_end_of_model(std::string_view op, const GradientBuilder& builder, const NodeView& node);

int64_t last_dim(const TensorType& type);
int64_t row_count(const TensorType& type);  // product of all dims but the last
// Statistics, losses and parameter gradients: f32, in f64 plans f64.
Dtype wide(Dtype dtype);
inline TensorType wide_like(const TensorType& type) { return {wide(type.dtype), type.shape}; }

// The attributes that say which tokens of a sample this rank holds (tokens_axis and chunks), for a derivative.
Attrs token_attrs(const Attrs& attrs);

// Bytes of all tensors once, with `flops`.
Cost cost_of(double flops, const Types& inputs, const Types& outputs);
// Of matrix products, all of which are the model's.
Cost product_cost(double flops, const Types& inputs, const Types& outputs);
double count(const TensorType& type);
// `per_element` flops for each element of the first output (of the first input when there is no output).
template <int per_element>
Cost per_output(const Types& inputs, const Types& outputs, const Attrs&) {
  const Types& counted = outputs.empty() ? inputs : outputs;
  return cost_of(counted.empty() ? 0 : per_element * count(counted[0]), inputs, outputs);
}
// `per_element` flops for each element of all inputs.
template <int per_element>
Cost per_input(const Types& inputs, const Types& outputs, const Attrs&) {
  double n = 0;
  for (const TensorType& type : inputs) n += count(type);
  return cost_of(per_element * n, inputs, outputs);
}

}  // namespace prun::ops
