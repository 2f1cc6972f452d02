// Mixtures of experts. Token rows are sharded like the batch; expert rows are [experts, slots, ..], and each rank has
// slots of its own: S(1).
#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {

namespace {

// Whether the runs of documents, operand `read`, are of the same tokens as the logits. They may have no known placement
// where the batch is whole.
bool runs_match(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  return axis.context.op.attrs.integer("runs") == 0 || reads[read] == reads[0];
}

}  // namespace

// Operands: logits, bias?, runs?.
AxisOutcome route(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (axis.context.op.attrs.integer("biased") != 0 && !whole(reads[1])) return needs_whole(axis, 1);
  if (!runs_match(axis, reads, reads.size() - 1)) return do_not_match(axis, reads, reads.size() - 1);
  if (by_rows(axis, reads, 0)) return gives({reads[0], reads[0], partial(Combine::sum), shard(1)});
  return gives({whole(reads[0]) ? kInvariant : kUnknown});
}

// Operands: logits, weights, dweights, slots, counts?. The counts must have been reduced over all tokens. Losses of the
// router would be added once for each term of partial gradients.
AxisOutcome route_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (reads.size() > 4 && is_partial(reads[4]) && axis.context.op.attrs.has("tokens")) return needs_whole(axis, 4);
  if (reads.size() > 4 && is_partial(reads[2])) return needs_whole(axis, 2);
  for (const size_t same : {1, 3})
    if (reads[0] != reads[same]) return do_not_match(axis, reads, same);
  return gives({is_partial(reads[2]) ? reads[2] : reads[0]});
}

// Operands: logits, runs?.
AxisOutcome softmax_sums(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (!runs_match(axis, reads, 1)) return do_not_match(axis, reads, 1);
  if (by_rows(axis, reads, 0)) return gives({partial(Combine::sum)});
  return gives({whole(reads[0]) ? kInvariant : kUnknown});
}

// Operands: logits, the derivative by the sums over all tokens, runs?.
AxisOutcome softmax_sums_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (!whole(reads[1])) return needs_whole(axis, 1);
  if (!runs_match(axis, reads, 2)) return do_not_match(axis, reads, 2);
  return gives({reads[0]});
}

AxisOutcome dispatch(const AxisView& axis, const AxisPlacements& reads) {
  if (reads[1] == kSlotsOfExperts && whole(reads[0])) return gives({shard(0)});
  if (by_rows(axis, reads, 0) && reads[0] == reads[1]) return gives({shard(1)});
  return gives({whole(reads[0]) && whole(reads[1]) ? kInvariant : is_partial(reads[0]) ? reads[0] : kUnknown});
}

AxisOutcome dispatch_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (reads[0] == kSlotsOfExperts && reads[1] == shard(0)) return gives({partial(Combine::sum)});
  if (is_shard(reads[0]) && reads[1] == shard(1)) return gives({reads[0]});
  if (is_shard(reads[0]) || is_shard(reads[1])) return do_not_match(axis, reads, 1);
  return gives({whole(reads[0]) && (whole(reads[1]) || is_partial(reads[1])) ? reads[1] : kUnknown});
}

// Operands: y, slots, weights.
AxisOutcome combine(const AxisView& axis, const AxisPlacements& reads) {
  if (reads[0] == shard(0) && reads[1] == kSlotsOfExperts && whole(reads[2])) return gives({partial(Combine::sum)});
  if (reads[0] == shard(1) && is_shard(reads[1]) && reads[1] == reads[2]) return gives({reads[1]});
  if (is_shard(reads[0]) || is_shard(reads[1])) return do_not_match(axis, reads, 0);
  return gives({whole(reads[1]) && whole(reads[2]) && (whole(reads[0]) || is_partial(reads[0])) ? reads[0] : kUnknown});
}

// Operands: y, slots, weights, dout, dweights of other rounds?.
AxisOutcome combine_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (reads.size() > 4) {
    AxisOutcome own = combine_grad(axis, {reads.begin(), reads.begin() + 4});
    if (own.problem.empty() && own.writes.size() > 1 && own.writes[1] != reads[4]) return do_not_match(axis, reads, 4);
    return own;
  }
  if (reads[0] == shard(0) && reads[1] == kSlotsOfExperts && whole(reads[2]) && whole(reads[3]))
    return gives({shard(0), partial(Combine::sum)});
  if (reads[0] == shard(1) && is_shard(reads[1]) && reads[1] == reads[3]) return gives({shard(1), reads[1]});
  if (is_shard(reads[0]) || is_shard(reads[1])) return do_not_match(axis, reads, 0);
  const bool rest = whole(reads[1]) && whole(reads[2]);
  // dweights is a product of y and dout.
  if (rest && is_partial(reads[0]) && whole(reads[3])) return gives({reads[3], reads[0]});
  return gives({rest && whole(reads[0]) && (whole(reads[3]) || is_partial(reads[3])) ? reads[3] : kUnknown});
}

namespace {

// Whether the counts of filled slots, [E,P], are those of the rows of an operand [E,S,..].
bool counts_rows(const AxisPlacement& filled, const AxisPlacement& rows) {
  return is_shard(rows) && rows.dim < 2 ? filled == rows : whole(filled);
}

}  // namespace

// Operands: one or two of slots, filled. The result is nonlinear in them, or their sum.
AxisOutcome expert_activation(const AxisView& axis, const AxisPlacements& reads) {
  const size_t filled = reads.size() - 1;
  const bool sum = axis.context.op.attrs.integer("sum") != 0;
  if (!counts_rows(reads[filled], reads[0])) return do_not_match(axis, reads, filled);
  for (size_t r = 0; r < filled; r++) {
    if (is_partial(reads[r]) && !sum) return needs_whole(axis, r);
    if (reads[r] != reads[0]) return do_not_match(axis, reads, r);
  }
  return gives({reads[0]});
}

// The operands of expert_activation, with dy before filled: the result is linear in dy.
AxisOutcome expert_activation_grad(const AxisView& axis, const AxisPlacements& reads) {
  AxisPlacements forward = reads;
  const size_t dy = reads.size() - 2;
  forward.erase(forward.begin() + static_cast<std::ptrdiff_t>(dy));
  AxisOutcome outcome = expert_activation(axis, forward);
  if (!outcome.problem.empty()) return outcome;
  const bool linear = whole(reads[0]) && is_partial(reads[dy]);
  if (reads[dy] != reads[0] && !linear) return do_not_match(axis, reads, dy);
  return gives(AxisPlacements(dy, reads[dy]));
}

// x [E,S,d] and filled [E,P] -> [P,E,S / P,d]: the slots of a rank remain its own.
AxisOutcome pack_rows(const AxisView& axis, const AxisPlacements& reads) {
  if (!counts_rows(reads[1], reads[0])) return do_not_match(axis, reads, 1);
  AxisPlacement placement = reads[0];
  move_shard(placement, 1);
  return gives({placement});
}

AxisOutcome unpack_rows(const AxisView& axis, const AxisPlacements& reads) {
  AxisPlacement placement = reads[0];
  move_shard(placement, -1);
  if (!counts_rows(reads[1], placement)) return do_not_match(axis, reads, 1);
  return gives({placement});
}

// One GEMM per expert, x [E,S,K] and w [E,K,N].
AxisOutcome expert_linear(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &x = reads[0], &w = reads[1];
  if (!counts_rows(reads[2], x)) return do_not_match(axis, reads, 2);
  if (whole(w) && (x == shard(1) || whole(x) || is_partial(x))) return gives({x});
  if (x == shard(0) && w == shard(0)) return gives({x});
  if (is_shard(w) && w.dim == 2 && whole(x)) return gives({shard(2, w.cut)});
  if (is_shard(w) && w.dim == 1 && is_shard(x) && x.dim == 2 && cut_alike(x, w)) return gives({partial(Combine::sum)});
  if (is_shard(x) || is_shard(w)) return do_not_match(axis, reads, 0);
  return gives({kUnknown});
}

// dx = dy·wᵀ, from dy [E,S,N] and w.
AxisOutcome expert_linear_dx(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &dy = reads[0], &w = reads[1];
  if (!counts_rows(reads[2], dy)) return do_not_match(axis, reads, 2);
  if (whole(w) && (dy == shard(1) || whole(dy) || is_partial(dy))) return gives({dy});
  if (dy == shard(0) && w == shard(0)) return gives({dy});
  if (is_shard(w) && w.dim == 1 && whole(dy)) return gives({shard(2, w.cut)});
  if (is_shard(w) && w.dim == 2 && is_shard(dy) && dy.dim == 2 && cut_alike(dy, w))
    return gives({partial(Combine::sum)});
  if (is_shard(dy) || is_shard(w)) return do_not_match(axis, reads, 0);
  return gives({kUnknown});
}

AxisOutcome expert_linear_dw(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &x = reads[0], &dy = reads[1];
  if (!counts_rows(reads[2], x)) return do_not_match(axis, reads, 2);
  if (x == shard(1) && dy == shard(1)) return gives({partial(axis.combine)});
  if (x == shard(0) && dy == shard(0)) {
    AxisPlacement placement = shard(0);  // summed over the tokens of all ranks
    if (axis.combine == Combine::average) placement.combine = Combine::sum;
    return gives({placement});
  }
  if (is_shard(x) && x.dim == 2 && whole(dy)) return gives({shard(1, x.cut)});
  if (is_shard(dy) && dy.dim == 2 && whole(x)) return gives({shard(2, dy.cut)});
  if (is_shard(x) || is_shard(dy)) return do_not_match(axis, reads, 1);
  return gives({whole(x) && (whole(dy) || is_partial(dy)) ? dy : kUnknown});
}

}  // namespace prun::verify::rules
