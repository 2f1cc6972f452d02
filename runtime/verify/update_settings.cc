// Each parameter is updated with the plan's settings: its factor of the learning rate and its weight decay, which the
// program lists by parameter. The op lists them by piece of a flat vector.
//
// Surprising fact: a rank's shard begins in the middle of a parameter, so that each rank's shard is checked.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

// Returns the tensor of the parameters that the op updates: the op may update a copy that was loaded from host memory.
const Tensor& updated_tensor(const OpContext& context) {
  const Segments& params = context.reads[1];
  const OpRef writer = params.empty() ? OpRef{-1, 0} : params.front().state.writer;
  if (writer.stream < 0 || !context.body.op(writer).is(ops::load)) return *context.read_tensors[1];
  return context.body.program->tensors[context.body.op(writer).reads[0]];
}

struct Pieces {
  std::vector<int64_t> starts;
  std::vector<double> factors, decays;

  explicit Pieces(const Attrs& attrs)
      : starts(attrs.integers("piece_starts")),
        factors(attrs.numbers("piece_lr_factors")),
        decays(attrs.numbers("piece_weight_decays")) {
    if (!starts.empty()) return;
    starts = {INT64_MIN};
    factors = {attrs.number("lr_factor", 1)};
    decays = {attrs.number("weight_decay")};
  }
  // Returns the first piece of elements begin, ..., end - 1 with other settings; nullopt = none. -1 = no piece.
  std::optional<int> other(int64_t begin, int64_t end, const StateTensor& state) const {
    if (begin >= end) return std::nullopt;
    if (starts.empty() || begin < starts.front()) return -1;
    for (int p = 0; p < std::ssize(starts); p++) {
      const int64_t next = p + 1 < std::ssize(starts) ? starts[p + 1] : INT64_MAX;
      if (std::max(starts[p], begin) >= std::min(next, end)) continue;
      if (factors[p] != state.lr_factor || decays[p] != state.weight_decay) return p;
    }
    return std::nullopt;
  }
};

}  // namespace

bool is_in(const Program& program, const StateTensor& state, const Tensor& vector) {
  const Tensor& of = program.tensors[state.tensor];
  return of.buffer == vector.buffer && of.byte_offset == vector.byte_offset;
}

std::string shard_problem(const Program& program, const Attrs& attrs, const StateTensor& parameter) {
  const bool sharded = !parameter.shard_axis.empty() && program.mesh.size(parameter.shard_axis) > 1;
  const std::string axis = sharded ? parameter.shard_axis : "", named = attrs.text("axis");
  const int64_t elements = program.tensors[parameter.tensor].count();
  if (axis == named && (!sharded || attrs.integer("shard") == elements)) return "";
  return fmt::format("updates a shard of {} elements over '{}', and '{}' has one of {} over '{}'",
                     attrs.integer("shard"), named, parameter.name, elements, axis);
}

void check_update_settings(const OpContext& context) {
  constexpr const char* kRule = "parameter groups";
  const Program& program = *context.body.program;
  const Tensor& updated = updated_tensor(context);
  const Attrs& attrs = context.op.attrs;
  const Pieces pieces(attrs);
  const size_t count = pieces.starts.size();
  if (pieces.factors.size() != count || pieces.decays.size() != count)
    return context.report(kRule, "lists pieces without settings for each", ValueState());
  const std::string axis = attrs.text("axis");
  const bool listed_by_piece = attrs.has("piece_starts");
  for (const StateTensor& state : program.state) {
    const Tensor& of = program.tensors[state.tensor];
    if (of.buffer != updated.buffer || of.byte_offset >= updated.byte_offset + updated.bytes() ||
        updated.byte_offset >= of.byte_offset + of.bytes())
      continue;
    const int64_t first = (updated.byte_offset - of.byte_offset) / dtype_bytes(of.dtype);
    const bool sharded = !state.shard_axis.empty() && program.mesh.size(state.shard_axis) > 1;
    if (listed_by_piece && axis != (sharded ? state.shard_axis : ""))
      return context.report(kRule,
                            fmt::format("lists the pieces of a shard over {} for one over {}",
                                        axis.empty() ? "no axis" : axis, sharded ? state.shard_axis : "no axis"),
                            ValueState());
    const int64_t begin = state.begin, end = begin + local_count(program, state), shard = of.count();
    for (int64_t rank = sharded ? begin / shard : 0; rank == 0 || rank * shard < end; rank++) {
      const int64_t in_vector = sharded ? rank * shard + first : first;
      const int64_t from = std::clamp<int64_t>(begin - in_vector, 0, updated.count()),
                    to = std::clamp<int64_t>(end - in_vector, 0, updated.count()),
                    listed = rank * attrs.integer("shard");
      const std::optional<int> other = pieces.other(listed + from, listed + to, state);
      if (other) {
        const bool none = *other < 0;
        return context.report(
            kRule,
            fmt::format(
                "updates '{}' with {}, where the plan has lr factor {} and weight decay {}", state.name,
                none ? "no settings"
                     : fmt::format("lr factor {} and weight decay {}", pieces.factors[*other], pieces.decays[*other]),
                state.lr_factor, state.weight_decay),
            ValueState());
      }
      if (!sharded || (from < to && !listed_by_piece)) break;  // without pieces all ranks update alike
    }
  }
}

}  // namespace prun::verify
