// rotary: rotates pairs of a head's elements by an angle proportional to the token's position (Su et al., RoFormer,
// 2021). Elements i and i + size/2 are a pair, as in Hugging Face's llama; with `interleaved` 2i and 2i + 1, as in the
// paper. With `part`, only the first `part` elements of a head are rotated, as in GPT-NeoX, as if it had no others.
// rotary_at reads the positions: those of documents, which restart, and those of a generation.
//
// The derivative rotates back by the same angles.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

constexpr std::array kScalings = {"linear", "llama3", "yarn", "longrope"};

void require_factors(std::string_view op, const Attrs& attrs, int64_t pairs) {
  const std::vector<double> factors = attrs.numbers("factors");
  if (std::ssize(factors) != pairs)
    throw plan_error(fmt::format("{}: longrope has {} factors for {} pairs of a head; should be one of each pair", op,
                                 factors.size(), pairs));
  for (const double factor : factors)
    if (!(factor > 0)) throw plan_error(fmt::format("{}: a factor of longrope is {}, should be above 0", op, factor));
}

void require_scaling(std::string_view op, const Attrs& attrs, int64_t pairs) {
  if (!(attrs.number("attention_factor", 1) > 0))
    throw plan_error(
        fmt::format("{}: attention_factor is {}, should be above 0", op, attrs.number("attention_factor")));
  const std::string scaling = attrs.text("scaling");
  if (scaling.empty()) return;
  if (std::ranges::find(kScalings, scaling) == kScalings.end())
    throw plan_error(fmt::format("{}: the scaling '{}' is none of linear, llama3, yarn, longrope", op, scaling));
  if (scaling == "longrope") return require_factors(op, attrs, pairs);
  if (!(attrs.number("factor") > 0))
    throw plan_error(fmt::format("{}: factor is {}, should be above 0", op, attrs.number("factor")));
  const double context = attrs.number("original_context");
  const double low = attrs.number("low_freq_factor"), high = attrs.number("high_freq_factor");
  if (scaling == "llama3" && !(low > 0 && high > low && context > 0))
    throw plan_error(
        fmt::format("{}: llama3 needs 0 < low_freq_factor < high_freq_factor, and an original_context: these are {}, "
                    "{}, {}",
                    op, low, high, context));
  const double slow = attrs.number("beta_slow", 1), fast = attrs.number("beta_fast", 32);
  if (scaling == "yarn" && !(slow > 0 && fast > slow && context > 0))
    throw plan_error(
        fmt::format("{}: yarn needs 0 < beta_slow < beta_fast, and an original_context: these are {}, {}, {}", op, slow,
                    fast, context));
  if (scaling == "yarn" && attrs.number("base", 10000) == 1)
    throw plan_error(fmt::format("{}: yarn needs a base other than 1, because all pairs rotate alike with 1", op));
}

void require_rotation(std::string_view op, const TensorType& x, const Attrs& attrs) {
  require_float(op, "the input", x);
  require_rank(op, "the input", x, 3);
  const int64_t size = attrs.integer("size"), heads = attrs.integer("heads"), part = attrs.integer("part", size);
  if (size < 2 || (size % 2 != 0 && part == size))
    throw plan_error(fmt::format("{}: a head of size {}; the size should be even, at least 2", op, size));
  if (part < 2 || part % 2 != 0 || part > size)
    throw plan_error(fmt::format("{}: part is {}; should be even, from 2 to the size {}", op, part, size));
  if (last_dim(x) % size != 0)
    throw plan_error(fmt::format("{}: the input's last dim is {}, not a multiple of size {}", op, last_dim(x), size));
  if (heads < 0 || heads > last_dim(x) / size)
    throw plan_error(fmt::format("{}: {} heads of size {}, the input's last dim is {}", op, heads, size, last_dim(x)));
  if (!(attrs.number("base", 10000) > 0))
    throw plan_error(fmt::format("{}: base is {}, should be above 0", op, attrs.number("base", 10000)));
  require_scaling(op, attrs, part / 2);
}

Types infer_rotary(const Types& inputs, const Attrs& attrs) {
  require_inputs("rotary", inputs, 1, 1);
  require_rotation("rotary", inputs[0], attrs);
  require_chunks("rotary", attrs, inputs[0].shape[1]);
  return {inputs[0]};
}

Types infer_rotary_at(const Types& inputs, const Attrs& attrs) {
  require_inputs("rotary_at", inputs, 2, 2);
  require_positions("rotary_at", inputs[0], inputs[1]);
  require_rotation("rotary_at", inputs[0], attrs);
  return {inputs[0]};
}

void derive_rotary(GradientBuilder& builder, const NodeView& node) {
  const ValueId x = node.inputs[0];
  if (!builder.wants(x)) return;
  Attrs attrs = node.attrs;
  attrs.set("inverse", 1 - node.attrs.integer("inverse"));
  std::vector<ValueId> reads = node.inputs;
  reads[0] = builder.gradient(node.outputs[0]);
  const OpDef& op = node.inputs.size() > 1 ? rotary_at : rotary;
  builder.contribute(x, builder.emit(op, reads, {builder.type(x)}, attrs)[0]);
}

}  // namespace

const OpDef rotary = {.name = "rotary",
                      .distribution = Distribution::own,
                      .infer = infer_rotary,
                      .derive = derive_rotary,
                      .cost = per_output<3>};
const OpDef rotary_at = {.name = "rotary_at",
                         .distribution = Distribution::own,
                         .infer = infer_rotary_at,
                         .derive = derive_rotary,
                         .cost = per_output<3>};

}  // namespace prun::ops
