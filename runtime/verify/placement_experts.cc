// Mixtures of experts. Token rows are sharded like the batch; expert rows are [experts, slots, ..], and each rank has
// slots of its own: S(1).
#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {

AxisOutcome route(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (by_rows(axis, reads, 0)) return gives({reads[0], reads[0], partial(Combine::sum)});
  return gives({whole(reads[0]) ? kInvariant : kUnknown});
}

// Operands: logits, weights, dweights, counts?. The counts must have been reduced over all tokens.
AxisOutcome route_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (reads.size() > 3 && is_partial(reads[3]) && axis.context.op.attrs.has("tokens")) return needs_whole(axis, 3);
  if (reads[0] != reads[1]) return do_not_match(axis, reads, 1);
  return gives({is_partial(reads[2]) ? reads[2] : reads[0]});
}

AxisOutcome softmax_sums(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (by_rows(axis, reads, 0)) return gives({partial(Combine::sum)});
  return gives({whole(reads[0]) ? kInvariant : kUnknown});
}

// Operands: logits, the derivative by the sums over all tokens.
AxisOutcome softmax_sums_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (!whole(reads[1])) return needs_whole(axis, 1);
  return gives({reads[0]});
}

AxisOutcome dispatch(const AxisView& axis, const AxisPlacements& reads) {
  if (by_rows(axis, reads, 0) && reads[0] == reads[1]) return gives({shard(1)});
  return gives({whole(reads[0]) && whole(reads[1]) ? kInvariant : is_partial(reads[0]) ? reads[0] : kUnknown});
}

AxisOutcome dispatch_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (is_shard(reads[0]) && reads[1] == shard(1)) return gives({reads[0]});
  if (is_shard(reads[0]) || is_shard(reads[1])) return do_not_match(axis, reads, 1);
  return gives({whole(reads[0]) && (whole(reads[1]) || is_partial(reads[1])) ? reads[1] : kUnknown});
}

// Operands: y, slots, weights.
AxisOutcome combine(const AxisView& axis, const AxisPlacements& reads) {
  if (reads[0] == shard(1) && is_shard(reads[1]) && reads[1] == reads[2]) return gives({reads[1]});
  if (is_shard(reads[0]) || is_shard(reads[1])) return do_not_match(axis, reads, 0);
  return gives({whole(reads[1]) && whole(reads[2]) && (whole(reads[0]) || is_partial(reads[0])) ? reads[0] : kUnknown});
}

// Operands: y, slots, weights, dout.
AxisOutcome combine_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (reads[0] == shard(1) && is_shard(reads[1]) && reads[1] == reads[3]) return gives({shard(1), reads[1]});
  if (is_shard(reads[0]) || is_shard(reads[1])) return do_not_match(axis, reads, 0);
  const bool rest = whole(reads[0]) && whole(reads[1]) && whole(reads[2]);
  return gives({rest && (whole(reads[3]) || is_partial(reads[3])) ? reads[3] : kUnknown});
}

// One GEMM per expert; also its derivative by x, from dy.
AxisOutcome expert_linear(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &x = reads[0], &w = reads[1];
  if (whole(w) && (x == shard(1) || whole(x) || is_partial(x))) return gives({x});
  if (x == shard(0) && w == shard(0)) return gives({x});
  if ((x == shard(0)) != (w == shard(0))) return do_not_match(axis, reads, 0);
  return gives({kUnknown});
}

AxisOutcome expert_linear_dw(const AxisView& axis, const AxisPlacements& reads) {
  if (reads[0] == shard(1) && reads[1] == shard(1)) return gives({partial(axis.combine)});
  if (reads[0] == shard(0) && reads[1] == shard(0)) {
    AxisPlacement placement = shard(0);  // summed over the tokens of all ranks
    if (axis.combine == Combine::average) placement.combine = Combine::sum;
    return gives({placement});
  }
  if (is_shard(reads[0]) && is_shard(reads[1]) && reads[0] != reads[1]) return do_not_match(axis, reads, 1);
  return gives({whole(reads[0]) && (whole(reads[1]) || is_partial(reads[1])) ? reads[1] : kUnknown});
}

}  // namespace prun::verify::rules
