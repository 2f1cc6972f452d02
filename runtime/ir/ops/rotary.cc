// rotary: rotates pairs of a head's elements by an angle proportional to the token's position (Su et al., RoFormer,
// 2021). Elements i and i + size/2 are a pair, as in Hugging Face's llama; the paper pairs neighbors. With `part`, only
// the first `part` elements of a head are rotated, as in GPT-NeoX, and i and i + part/2 are a pair.
//
// The derivative rotates back by the same angles.
#include <fmt/format.h>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

void require_scaling(std::string_view op, const Attrs& attrs) {
  const std::string scaling = attrs.text("scaling");
  if (scaling.empty()) return;
  if (scaling != "linear" && scaling != "llama3")
    throw plan_error(fmt::format("{}: the scaling '{}' is none of linear, llama3", op, scaling));
  if (!(attrs.number("factor") > 0))
    throw plan_error(fmt::format("{}: factor is {}, should be above 0", op, attrs.number("factor")));
  const double low = attrs.number("low_freq_factor"), high = attrs.number("high_freq_factor");
  if (scaling == "llama3" && !(low > 0 && high > low && attrs.number("original_context") > 0))
    throw plan_error(
        fmt::format("{}: llama3 needs 0 < low_freq_factor < high_freq_factor, and an original_context: these are {}, "
                    "{}, {}",
                    op, low, high, attrs.number("original_context")));
}

Types infer_rotary(const Types& inputs, const Attrs& attrs) {
  require_inputs("rotary", inputs, 1, 1);
  const TensorType& x = inputs[0];
  require_float("rotary", "the input", x);
  require_rank("rotary", "the input", x, 3);
  int64_t size = attrs.integer("size"), heads = attrs.integer("heads");
  if (size < 2 || size % 2 != 0)
    throw plan_error(fmt::format("rotary: a head of size {}; the size should be even, at least 2", size));
  if (const int64_t part = attrs.integer("part", size); part < 2 || part % 2 != 0 || part > size)
    throw plan_error(fmt::format("rotary: part is {}; should be even, from 2 to the size {}", part, size));
  if (last_dim(x) % size != 0)
    throw plan_error(fmt::format("rotary: the input's last dim is {}, not a multiple of size {}", last_dim(x), size));
  if (heads < 0 || heads > last_dim(x) / size)
    throw plan_error(fmt::format("rotary: {} heads of size {}, the input's last dim is {}", heads, size, last_dim(x)));
  if (!(attrs.number("base", 10000) > 0))
    throw plan_error(fmt::format("rotary: base is {}, should be above 0", attrs.number("base", 10000)));
  require_scaling("rotary", attrs);
  require_chunks("rotary", attrs, x.shape[1]);
  return {x};
}

void derive_rotary(GradientBuilder& builder, const NodeView& node) {
  ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  Attrs attrs = node.attrs;
  attrs.set("inverse", 1 - node.attrs.integer("inverse"));
  builder.contribute(x, builder.emit(rotary, {builder.gradient(node.outputs[0])}, {builder.type(x)}, attrs)[0]);
}

}  // namespace

const OpDef rotary = {.name = "rotary",
                      .distribution = Distribution::own,
                      .infer = infer_rotary,
                      .derive = derive_rotary,
                      .cost = per_output<3>};

}  // namespace prun::ops
