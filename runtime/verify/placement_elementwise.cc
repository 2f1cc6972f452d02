// Elementwise ops, optimizers and gradient norms.
//
// Surprising fact: a sum of squares is partial if its operands are sharded; a value that every rank has counts once.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {

// y is a sum of the operands: all must be whole, all sharded alike, or all partial. A whole value equals the average of
// the ranks' copies, so that it may be added to values that are still to be averaged.
AxisOutcome linear_elementwise(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement average = partial(Combine::average);
  if (axis.context.op.is(ops::add) && std::find(reads.begin(), reads.end(), average) != reads.end() &&
      std::all_of(reads.begin(), reads.end(), [&](const auto& read) { return read == average || whole(read); }))
    return gives({average});
  const Agreement result = agreement(reads, 0, reads.size());
  if (!result.agree) return do_not_match(axis, reads, result.read);
  return gives({result.placement});
}

AxisOutcome nonlinear_elementwise(const AxisView& axis, const AxisPlacements& reads) {
  for (size_t r = 0; r < reads.size(); r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  return linear_elementwise(axis, reads);
}

// A product is linear in each factor, so one factor may be partial if the others are whole.
AxisOutcome product(const AxisView& axis, const AxisPlacements& reads) {
  const size_t at = std::find_if(reads.begin(), reads.end(), is_partial) - reads.begin();
  if (at == reads.size()) return linear_elementwise(axis, reads);
  for (size_t r = 0; r < reads.size(); r++)
    if (r != at && !whole(reads[r])) return needs_whole(axis, at);
  return gives({reads[at]});
}

// Derivatives of elementwise ops are linear in dy, the last operand.
AxisOutcome elementwise_grad(const AxisView& axis, const AxisPlacements& reads) {
  const size_t dy = reads.size() - 1;
  for (size_t r = 0; r < dy; r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  return product(axis, reads);
}

// With attribute `axis`, the op divides a sum by the ranks of that axis. This is due after a reduce-scatter of sums
// over the samples of all ranks.
AxisOutcome scale(const AxisView& axis, const AxisPlacements& reads) {
  AxisPlacement placement = reads[0];
  if (!axis("axis") || is(placement, Kind::zero)) return gives({placement});
  if (!is_shard(placement) || placement.combine != Combine::sum)
    return bad(0, fmt::format("divides by the ranks of {} for an average over them, and nothing was added up over "
                              "them: {}",
                              axis.axis, placement_words(placement)));
  const double factor = axis.context.op.attrs.number("factor", 1) * axis.ranks;
  if (factor > 0.999 && factor < 1.001) placement.combine = Combine::any;
  return gives({placement});
}

// Operands: grad, param, states, clip?; some may be unknown.
AxisOutcome optimizer(const AxisView& axis, const AxisPlacements& reads) {
  const bool by_itself = axis.drifts && is_partial(reads[0]) && reads[0].combine == Combine::average;
  if (is_partial(reads[0]) && !by_itself) {
    return bad(
        0, fmt::format("updates parameters with gradients that are partial over {0}: a reduction over {0} is missing",
                       axis.axis));
  }
  if (is_shard(reads[0]) && reads[0].combine == Combine::sum) {
    return bad(0, fmt::format("updates parameters with gradients that add up the samples of all ranks of {}, where an "
                              "average is due: a factor 1/{} is missing",
                              axis.axis, axis.ranks));
  }
  const size_t operands = std::min(reads.size(), 1 + updated_by(axis.context.op));
  if (operands < reads.size() && is_partial(reads.back())) return needs_whole(axis, reads.size() - 1);
  for (size_t r = 0; r < operands; r++)
    if (is(reads[r], Kind::unknown)) return gives({reads[r]});
  if (by_itself && whole(reads[1])) return gives({varying(Differs::drift)});
  if (is(reads[1], Kind::varying)) return gives({reads[1]});
  for (size_t r = 0; r < reads.size(); r++)
    if (is(reads[r], Kind::varying)) return gives({reads[r]});
  const Agreement result = agreement(reads, 0, operands);
  if (!result.agree) return do_not_match(axis, reads, result.read);
  return gives({result.placement});
}

// The norm of shards is a partial sum over the ranks. If other operands are whole, weights must make their elements
// count once.
AxisOutcome norm2(const AxisView& axis, const AxisPlacements& reads) {
  const bool weights = axis.context.op.attrs.has("weights") || axis.context.op.attrs.has("piece_weights");
  size_t parts = 0, wholes = 0, whole_at = 0;
  bool alone = false;  // the rank's own gradient
  for (size_t r = 0; r < reads.size(); r++) {
    if (axis.drifts && is_partial(reads[r]) && reads[r].combine == Combine::average) {
      alone = true;
      continue;
    }
    if (is_partial(reads[r])) return needs_whole(axis, r);
    if (is_shard(reads[r]) || is(reads[r], Kind::varying)) parts++;
    if (is(reads[r], Kind::invariant)) wholes++, whole_at = r;
  }
  const bool unknown = std::any_of(reads.begin(), reads.end(),
                                   [](const AxisPlacement& placement) { return is(placement, Kind::unknown); });
  if (unknown) return gives({kUnknown});
  if (alone) return gives({varying(Differs::drift)});
  if (parts > 0 && wholes > 0 && !weights)
    return bad(whole_at, fmt::format("counts what every rank has once for each rank of {}, beside parts", axis.axis));
  if (parts > 0) return gives({partial(Combine::sum)});
  return gives({weights ? kUnknown : kInvariant});
}

AxisOutcome clip_coefficient(const AxisView& axis, const AxisPlacements& reads) {
  if (!is_partial(reads[0])) return gives({reads[0]});
  return bad(0, fmt::format("clips by the norm of one rank's part over {0}: a sum over {0} is missing", axis.axis));
}

// Only host ops read the output of a check.
AxisOutcome note(const AxisView&, const AxisPlacements&) { return gives({kUnknown}); }

}  // namespace prun::verify::rules
