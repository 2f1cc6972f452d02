// What each op does to placements on one axis: one table, from the op to its rule.
//
// A rule sees axes that are known and not varying. Surprising fact: all of them are consequences of two sentences: a
// sum over a dim that is sharded is partial, and what is not linear may not see a partial sum.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "ir/ops.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

using Kind = PlacementKind;
AxisOutcome gives(AxisPlacements axes) { return {std::move(axes), "", 0}; }
AxisOutcome bad(size_t read, std::string problem) { return {{}, std::move(problem), read}; }

AxisOutcome needs_whole(const AxisView& axis, size_t read) {
  return bad(read,
             fmt::format("takes partial sums over {0} for whole values: a reduction over {0} is missing", axis.axis));
}
AxisOutcome do_not_match(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  std::string list;
  for (const AxisPlacement& placement : reads) list += (list.empty() ? "" : "; ") + placement_words(placement);
  return bad(read, fmt::format("combines operands that are spread differently over {}: {}", axis.axis, list));
}

bool is(const AxisPlacement& placement, Kind kind) { return placement.kind == kind; }
bool whole(const AxisPlacement& placement) { return is(placement, Kind::invariant) || is(placement, Kind::zero); }
bool is_partial(const AxisPlacement& placement) { return is(placement, Kind::partial); }
bool is_shard(const AxisPlacement& placement) { return is(placement, Kind::shard); }
int last_dim(const AxisView& axis, size_t read) { return std::ssize(axis.context.read_tensors[read]->shape) - 1; }
// Sharded along the dim that products sum over, or along rows.
bool by_columns(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  return is_shard(reads[read]) && reads[read].dim == last_dim(axis, read);
}
bool by_rows(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  return is_shard(reads[read]) && reads[read].dim < last_dim(axis, read);
}

// The one placement of operands that must agree, zeros apart; nothing when they do not.
struct Agreement {
  bool agree = true;
  AxisPlacement placement = kZero;
  size_t read = 0;  // who disagrees
};
Agreement agreement(const AxisPlacements& reads, size_t from, size_t to) {
  Agreement result;
  for (size_t r = from; r < to; r++) {
    if (is(reads[r], Kind::zero)) continue;
    AxisPlacement placement = reads[r];
    if (is(result.placement, Kind::zero)) {
      result.placement = placement;
    } else if (result.placement != placement) {
      result.agree = false;
      result.read = r;
    }
  }
  return result;
}

// y is a sum of the operands: all must be whole, or parts, or partial sums.
AxisOutcome linear_elementwise(const AxisView& axis, const AxisPlacements& reads) {
  const Agreement result = agreement(reads, 0, reads.size());
  if (!result.agree) return do_not_match(axis, reads, result.read);
  return gives({result.placement});
}

AxisOutcome nonlinear_elementwise(const AxisView& axis, const AxisPlacements& reads) {
  for (size_t r = 0; r < reads.size(); r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  return linear_elementwise(axis, reads);
}

// A product is linear in one factor: the others must be whole.
AxisOutcome product(const AxisView& axis, const AxisPlacements& reads) {
  const size_t at = std::find_if(reads.begin(), reads.end(), is_partial) - reads.begin();
  if (at == reads.size()) return linear_elementwise(axis, reads);
  for (size_t r = 0; r < reads.size(); r++)
    if (r != at && !whole(reads[r])) return needs_whole(axis, at);
  return gives({reads[at]});
}

// Derivatives of elementwise ops: linear in dy, the last operand.
AxisOutcome elementwise_grad(const AxisView& axis, const AxisPlacements& reads) {
  const size_t dy = reads.size() - 1;
  for (size_t r = 0; r < dy; r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  return product(axis, reads);
}

// grad, param, states, clip?; some may be unknown.
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

// y = act(x·w + b).
AxisOutcome linear(const AxisView& axis, const AxisPlacements& reads) {
  const Op& op = axis.context.op;
  const AxisPlacement &x = reads[0], &w = reads[1];
  const int k = op.attrs.integer("transpose") != 0 ? 1 : 0;
  const bool bias = reads.size() > 2;
  const bool nonlinear = bias || !op.attrs.text("act").empty();
  const int last = last_dim(axis, 0);
  if (by_columns(axis, reads, 0) && is_shard(w) && w.dim == k) {
    if (bias) return bad(2, fmt::format("adds a bias to each rank's partial sum over {}", axis.axis));
    return nonlinear ? needs_whole(axis, 0) : gives({partial(Combine::sum)});
  }
  if (whole(x) && is_shard(w) && w.dim == 1 - k && (!bias || is_shard(reads[2]))) return gives({shard(last)});
  if (is_partial(x) && whole(w)) return nonlinear ? needs_whole(axis, 0) : gives({x});
  if (by_rows(axis, reads, 0) && whole(w) && (!bias || whole(reads[2]))) return gives({x});
  if (whole(x) && whole(w) && (!bias || whole(reads[2]))) return gives({kInvariant});
  return do_not_match(axis, reads, 0);
}

AxisOutcome linear_dx(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &dy = reads[0], &w = reads[1];
  const int k = axis.context.op.attrs.integer("transpose") != 0 ? 1 : 0;
  if (by_columns(axis, reads, 0) && is_shard(w) && w.dim == 1 - k) return gives({partial(Combine::sum)});
  if (whole(dy) && is_shard(w) && w.dim == k) return gives({shard(last_dim(axis, 0))});
  if (whole(w) && (is_partial(dy) || by_rows(axis, reads, 0) || whole(dy))) return gives({dy});
  return do_not_match(axis, reads, 0);
}

AxisOutcome linear_dw(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &x = reads[0], &dy = reads[1];
  const int k = axis.context.op.attrs.integer("transpose") != 0 ? 1 : 0;
  if (by_rows(axis, reads, 0) && by_rows(axis, reads, 1) && x.dim == dy.dim)
    return gives({partial(axis.combine), partial(axis.combine)});
  if (by_columns(axis, reads, 0) && whole(dy)) return gives({shard(k), kInvariant});
  if (whole(x) && by_columns(axis, reads, 1)) return gives({shard(1 - k), shard(0)});
  if (whole(x) && is_partial(dy)) return gives({dy, dy});
  if (is_partial(x) && whole(dy)) return gives({x, kInvariant});
  if (whole(x) && whole(dy)) return gives({kInvariant, kInvariant});
  return do_not_match(axis, reads, 1);
}

// pre = x·w + b, of which gelu may not see a partial sum.
AxisOutcome linear_gelu(const AxisView& axis, const AxisPlacements& reads) {
  const AxisOutcome pre = linear(axis, reads);
  if (!pre.problem.empty()) return pre;
  if (is_partial(pre.writes[0])) return needs_whole(axis, 0);
  return gives({pre.writes[0], pre.writes[0]});
}

// dy, w, pre: the product is what gelu's derivative, a function of pre, multiplies.
AxisOutcome linear_dx_gelu(const AxisView& axis, const AxisPlacements& reads) {
  const AxisOutcome product = linear_dx(axis, reads);
  if (!product.problem.empty()) return product;
  AxisOutcome dx = elementwise_grad(axis, {reads[2], product.writes[0]});
  if (!dx.problem.empty()) dx.read = dx.read == 0 ? 2 : 0;
  return dx;
}

AxisOutcome bias(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return bad(0, fmt::format("adds a bias to each rank's partial sum over {}", axis.axis));
  if (by_columns(axis, reads, 0) && is_shard(reads[1])) return gives({reads[0]});
  if ((by_rows(axis, reads, 0) || whole(reads[0])) && whole(reads[1])) return gives({reads[0]});
  return do_not_match(axis, reads, 1);
}

AxisOutcome bias_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (by_rows(axis, reads, 0)) return gives({partial(axis.combine)});
  if (by_columns(axis, reads, 0)) return gives({shard(0)});
  return gives({reads[0]});
}

// Statistics of rows are spread as the rows are.
AxisOutcome norm(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (by_columns(axis, reads, 0))
    return bad(0, fmt::format("normalizes rows of which each rank has a part over {}", axis.axis));
  for (size_t r = 1; r < reads.size(); r++)
    if (!whole(reads[r])) return do_not_match(axis, reads, r);
  return gives({reads[0]});
}

// x, dy, gamma, statistics; dx and the gradients of gamma and beta.
AxisOutcome norm_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (by_rows(axis, reads, 0) && reads[0] == reads[1])
    return gives({reads[0], partial(axis.combine), partial(axis.combine)});
  if (whole(reads[0]) && (whole(reads[1]) || is_partial(reads[1]))) return gives({reads[1], reads[1], reads[1]});
  return do_not_match(axis, reads, 1);
}

// a, b, gamma, beta?: a norm sees their sum.
AxisOutcome add_norm(const AxisView& axis, const AxisPlacements& reads) {
  const AxisOutcome sum = linear_elementwise(axis, {reads[0], reads[1]});
  if (!sum.problem.empty()) return sum;
  AxisPlacements seen(reads.begin() + 1, reads.end());
  seen[0] = sum.writes[0];
  AxisOutcome outcome = norm(axis, seen);
  if (outcome.read > 0) outcome.read++;
  return outcome;
}

// As norm_grad, with another gradient behind, which is added to dx.
AxisOutcome norm_grad_add(const AxisView& axis, const AxisPlacements& reads) {
  AxisOutcome outcome = norm_grad(axis, reads);
  if (!outcome.problem.empty()) return outcome;
  const AxisPlacements terms = {outcome.writes[0], reads.back()};
  const Agreement dx = agreement(terms, 0, 2);
  if (!dx.agree) return do_not_match(axis, terms, reads.size() - 1);
  outcome.writes[0] = dx.placement;
  return outcome;
}

AxisOutcome attention(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (is_shard(reads[0]) && reads[0].dim == 0) return gives({shard(0), shard(0)});
  if (by_columns(axis, reads, 0)) return gives({shard(2), shard(1)});
  if (is_shard(reads[0]))
    return bad(0, fmt::format("attends to the rank's own tokens only, of those split over {}", axis.axis));
  return gives({kInvariant, kInvariant});
}

AxisOutcome attention_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (is_shard(reads[0]) && reads[0] == reads[2]) return gives({reads[0]});
  if (whole(reads[0]) && (whole(reads[2]) || is_partial(reads[2]))) return gives({reads[2]});
  return do_not_match(axis, reads, 2);
}

AxisOutcome embedding(const AxisView& axis, const AxisPlacements& reads) {
  if (axis("axis") && whole(reads[0]) && is_shard(reads[1])) return gives({partial(Combine::sum)});
  if (axis("axis") || !whole(reads[1])) return do_not_match(axis, reads, 1);
  return gives({reads[0]});
}

AxisOutcome embedding_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (axis("axis"))
    return whole(reads[0]) && whole(reads[1]) ? gives({shard(0), kInvariant}) : do_not_match(axis, reads, 1);
  if (is_shard(reads[0]) && reads[0] == reads[1]) return gives({partial(axis.combine), partial(axis.combine)});
  if (whole(reads[0]) && (whole(reads[1]) || is_partial(reads[1]))) return gives({reads[1], reads[1]});
  return do_not_match(axis, reads, 1);
}

AxisOutcome positions(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return bad(0, fmt::format("adds positions to each rank's partial sum over {}", axis.axis));
  if (axis("tokens_axis") != (is_shard(reads[0]) && reads[0].dim == 1) || !whole(reads[1]))
    return do_not_match(axis, reads, 0);
  return gives({reads[0]});
}

AxisOutcome positions_grad(const AxisView& axis, const AxisPlacements& reads) {
  return gives({is_shard(reads[0]) ? partial(axis.combine) : reads[0]});
}

// A loss adds up rows.
AxisOutcome loss(const AxisView& axis, const AxisPlacements& reads) {
  for (size_t r = 0; r < reads.size(); r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  if (by_columns(axis, reads, 0) && axis.context.op.def->counts_rows)
    return bad(0, fmt::format("takes each rank's part of the vocabulary over {} for all of it", axis.axis));
  if (is_shard(reads[0])) return gives({partial(axis.combine), reads[0]});
  return gives({kInvariant});
}

// logits, targets, lse.
AxisOutcome cross_entropy_grad(const AxisView& axis, const AxisPlacements& reads) {
  for (size_t r = 0; r < reads.size(); r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  if (by_columns(axis, reads, 0)) return axis("axis") ? gives({reads[0]}) : do_not_match(axis, reads, 0);
  if (reads[0] != reads[1] || reads[0] != reads[2]) return do_not_match(axis, reads, 1);
  return gives({reads[0]});
}

// logits, targets; the loss, statistics of rows and the gradient of the logits.
AxisOutcome cross_entropy_and_grad(const AxisView& axis, const AxisPlacements& reads) {
  const AxisOutcome forward = loss(axis, reads);
  if (!forward.problem.empty()) return forward;
  if (reads[0] != reads[1]) return do_not_match(axis, reads, 1);
  return gives({forward.writes[0], reads[0], reads[0]});
}

AxisOutcome cross_entropy_max(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  return gives({by_columns(axis, reads, 0) ? partial(Combine::max) : reads[0]});
}

AxisOutcome cross_entropy_sums(const AxisView& axis, const AxisPlacements& reads) {
  for (const size_t r : {0u, 2u})
    if (is_partial(reads[r])) return needs_whole(axis, r);
  return gives({by_columns(axis, reads, 0) ? partial(Combine::sum) : reads[0]});
}

AxisOutcome cross_entropy_finish(const AxisView& axis, const AxisPlacements& reads) {
  for (const size_t r : {0u, 1u})
    if (is_partial(reads[r])) return needs_whole(axis, r);
  if (by_rows(axis, reads, 2)) return gives({partial(axis.combine), reads[2]});
  return gives({kInvariant});
}

// Squares of shards are terms of a sum over the ranks; what all ranks have counts once, unless weights say otherwise.
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

AxisOutcome join_pieces(const AxisView& axis, const AxisPlacements& reads) {
  AxisPlacement placement = reads[0];
  const auto dim = static_cast<int8_t>(axis.context.op.attrs.integer("dim"));
  if (placement.pieces >= 0 && placement.pieces != dim) return do_not_match(axis, reads, 0);
  placement.pieces = -1;
  move_shard(placement, -1);
  return gives({placement});
}

AxisOutcome cut_pieces(const AxisView& axis, const AxisPlacements& reads) {
  AxisPlacement placement = reads[0];
  move_shard(placement, 1);
  placement.pieces = static_cast<int8_t>(axis.context.op.attrs.integer("dim"));
  return gives({placement});
}

AxisOutcome take_piece(const AxisView& axis, const AxisPlacements& reads) {
  AxisPlacement placement = reads[0];
  const OpContext& context = axis.context;
  const bool unstacks = context.write_tensors[0]->shape.size() < context.read_tensors[0]->shape.size();
  const auto dim = static_cast<int8_t>(context.op.attrs.integer("dim"));
  if (!axis("axis")) {
    if (unstacks || (dim == 0 && placement.pieces >= 0))
      move_shard(placement, unstacks ? -1 : 0), placement.pieces = -1;
    return gives({placement});
  }
  if (!whole(placement)) return do_not_match(axis, reads, 0);
  return gives({shard(placement.pieces >= 0 && dim == 0 ? placement.pieces : dim)});
}

// A sum over all ranks' samples becomes their average.
AxisOutcome scale(const AxisView& axis, const AxisPlacements& reads) {
  AxisPlacement placement = reads[0];
  const double factor = axis.context.op.attrs.number("factor", 1) * axis.ranks;
  if (is_shard(placement) && factor > 0.999 && factor < 1.001) placement.combine = Combine::any;
  return gives({placement});
}

// Attention of a rank's queries to the keys of one rank. What has met the keys of some hops only counts as turned, too:
// by as many places as hops are done, and all of them are a whole turn.
struct Hops {
  int hop, ranks;
  explicit Hops(const AxisView& axis)
      : hop(static_cast<int>(axis.context.op.attrs.integer("hop"))), ranks(axis.ranks) {}
  AxisPlacement after(int dim) const {
    AxisPlacement placement = shard(dim);
    placement.turn = static_cast<int16_t>((hop + 1) % ranks);
    return placement;
  }
};

AxisOutcome attention_block(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &q = reads[0], &kv = reads[1];
  for (const size_t r : {0u, 1u})
    if (is_partial(reads[r])) return needs_whole(axis, r);
  if (axis("tokens_axis")) {
    const Hops hops(axis);
    if (!is_shard(q) || q.dim != 1 || q.turn != 0 || !is_shard(kv)) return do_not_match(axis, reads, 1);
    if (kv.turn != hops.hop % hops.ranks)
      return bad(
          1, fmt::format("takes keys from {} ranks before along {} for those of hop {}", kv.turn, axis.axis, hops.hop));
    if (hops.hop > 0 && axis.context.op.is(ops::attention_block) &&
        (reads.size() < 4 || reads[2].turn != hops.hop % hops.ranks))
      return bad(1, fmt::format("is hop {} along {}, and the hops before it are not all done", hops.hop, axis.axis));
    return gives({hops.after(1), hops.after(2)});
  }
  if (q != kv) return do_not_match(axis, reads, 1);
  if (by_columns(axis, reads, 0)) return gives({q, shard(1)});
  return gives({q});
}

// qkv, kv, out, dout, lse, dq?; dq and what these queries add to the keys' gradient.
AxisOutcome attention_block_grad(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &q = reads[0], &kv = reads[1], &dout = reads[3];
  if (axis("tokens_axis")) {
    const Hops hops(axis);
    const AxisOutcome forward = attention_block(axis, reads);
    if (!forward.problem.empty()) return forward;
    if (dout != q) return do_not_match(axis, reads, 3);
    if (hops.hop > 0 && (reads.size() < 6 || reads[5].turn != hops.hop % hops.ranks))
      return bad(1, fmt::format("is hop {} along {}, and the hops before it are not all done", hops.hop, axis.axis));
    return gives({hops.after(1), kv});
  }
  if (q != kv || (q != dout && !is_partial(dout))) return do_not_match(axis, reads, 3);
  return gives({dout, dout});
}

// Mixture of experts. Rows of tokens are spread as the batch is; rows of experts are [experts, slots, ..], where each
// rank has slots of its own: S(1).
AxisOutcome route(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (by_rows(axis, reads, 0)) return gives({reads[0], reads[0], partial(Combine::sum)});
  return gives({whole(reads[0]) ? kInvariant : kUnknown});
}

// logits, weights, dweights, counts?; counts of all tokens must have been added up.
AxisOutcome route_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (reads.size() > 3 && is_partial(reads[3]) && axis.context.op.attrs.has("tokens")) return needs_whole(axis, 3);
  if (reads[0] != reads[1]) return do_not_match(axis, reads, 1);
  return gives({is_partial(reads[2]) ? reads[2] : reads[0]});
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

// y, slots, weights.
AxisOutcome combine(const AxisView& axis, const AxisPlacements& reads) {
  if (reads[0] == shard(1) && is_shard(reads[1]) && reads[1] == reads[2]) return gives({reads[1]});
  if (is_shard(reads[0]) || is_shard(reads[1])) return do_not_match(axis, reads, 0);
  return gives({whole(reads[1]) && whole(reads[2]) && (whole(reads[0]) || is_partial(reads[0])) ? reads[0] : kUnknown});
}

// y, slots, weights, dout.
AxisOutcome combine_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (reads[0] == shard(1) && is_shard(reads[1]) && reads[1] == reads[3]) return gives({shard(1), reads[1]});
  if (is_shard(reads[0]) || is_shard(reads[1])) return do_not_match(axis, reads, 0);
  const bool rest = whole(reads[0]) && whole(reads[1]) && whole(reads[2]);
  return gives({rest && (whole(reads[3]) || is_partial(reads[3])) ? reads[3] : kUnknown});
}

// Each expert's product; also its derivative by x, from dy.
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
    AxisPlacement placement = shard(0);  // of the tokens of all ranks
    if (axis.combine == Combine::average) placement.combine = Combine::sum;
    return gives({placement});
  }
  if (is_shard(reads[0]) && is_shard(reads[1]) && reads[0] != reads[1]) return do_not_match(axis, reads, 1);
  return gives({whole(reads[0]) && (whole(reads[1]) || is_partial(reads[1])) ? reads[1] : kUnknown});
}

AxisOutcome unary(const AxisView&, const AxisPlacements& reads) { return gives({reads[0]}); }
// What a check notes is read by people's ops only.
AxisOutcome note(const AxisView&, const AxisPlacements&) { return gives({kUnknown}); }

struct Row {
  const OpDef* op;
  AxisRule rule;
};

constexpr Row kElementwise[] = {{&ops::add, linear_elementwise},
                                {&ops::copy, linear_elementwise},
                                {&ops::cast, linear_elementwise},
                                {&ops::load, linear_elementwise},
                                {&ops::store, linear_elementwise},
                                {&ops::scale, scale},
                                {&ops::mul, product},
                                {&ops::gelu, nonlinear_elementwise},
                                {&ops::relu, nonlinear_elementwise},
                                {&ops::gelu_dx, elementwise_grad},
                                {&ops::relu_dx, elementwise_grad},
                                {&ops::tanh, nonlinear_elementwise},
                                {&ops::tanh_dx, elementwise_grad},
                                {&ops::silu_mul, nonlinear_elementwise},
                                {&ops::silu_mul_grad, elementwise_grad},
                                {&ops::mse_grad, nonlinear_elementwise},
                                {&ops::mean_square_grad, nonlinear_elementwise},
                                {&ops::mean_grad, nonlinear_elementwise},
                                {&ops::sgd, optimizer},
                                {&ops::adamw, optimizer},
                                {&ops::sgd_cast, optimizer},
                                {&ops::adamw_cast, optimizer},
                                {&ops::lion, optimizer}};

constexpr Row kRows[] = {
    {&ops::linear, linear},
    {&ops::linear_dx, linear_dx},
    {&ops::linear_dw, linear_dw},
    {&ops::linear_gelu, linear_gelu},
    {&ops::linear_dx_gelu, linear_dx_gelu},
    {&ops::bias, bias},
    {&ops::bias_grad, bias_grad},
    {&ops::layernorm, norm},
    {&ops::layernorm_grad, norm_grad},
    {&ops::add_layernorm, add_norm},
    {&ops::layernorm_grad_add, norm_grad_add},
    {&ops::rmsnorm, norm},
    {&ops::rmsnorm_grad, norm_grad},
    {&ops::add_rmsnorm, add_norm},
    {&ops::rmsnorm_grad_add, norm_grad_add},
    {&ops::attention, attention},
    {&ops::attention_grad, attention_grad},
    {&ops::rotary, unary},
    {&ops::copy_kv, unary},
    {&ops::join_qkv, linear_elementwise},
    {&ops::attention_block, attention_block},
    {&ops::attention_block_grad, attention_block_grad},
    {&ops::route, route},
    {&ops::route_grad, route_grad},
    {&ops::dispatch, dispatch},
    {&ops::dispatch_grad, dispatch_grad},
    {&ops::combine, combine},
    {&ops::combine_grad, combine_grad},
    {&ops::expert_linear, expert_linear},
    {&ops::expert_linear_dx, expert_linear},
    {&ops::expert_linear_dw, expert_linear_dw},
    {&ops::dropout, unary},
    {&ops::embedding, embedding},
    {&ops::embedding_grad, embedding_grad},
    {&ops::positions, positions},
    {&ops::positions_grad, positions_grad},
    {&ops::cross_entropy, loss},
    {&ops::cross_entropy_grad, cross_entropy_grad},
    {&ops::cross_entropy_and_grad, cross_entropy_and_grad},
    {&ops::cross_entropy_max, cross_entropy_max},
    {&ops::cross_entropy_sums, cross_entropy_sums},
    {&ops::cross_entropy_finish, cross_entropy_finish},
    {&ops::mse, loss},
    {&ops::mean_square, loss},
    {&ops::mean, loss},
    {&ops::norm2, norm2},
    {&ops::clip_coefficient, clip_coefficient},
    {&ops::join_pieces, join_pieces},
    {&ops::cut_pieces, cut_pieces},
    {&ops::take_piece, take_piece},
    {&ops::check_finite, note},
};

AxisRule find(std::span<const Row> rows, const OpDef& op) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& one) { return one.op->name == op.name; });
  return row == rows.end() ? nullptr : row->rule;
}

// Followed in placement_comm.cc and, messages, in values.cc; and what is not followed: results that only a root has, or
// whose sizes are data, and what autodiff and ring attention leave in no program.
constexpr const OpDef* kCommunication[] = {&ops::all_reduce, &ops::all_gather, &ops::all_to_all, &ops::reduce_scatter,
                                           &ops::broadcast,  &ops::send,       &ops::recv,       &ops::put,
                                           &ops::signal,     &ops::wait_signal};
constexpr const OpDef* kNotFollowed[] = {
    &ops::reduce,       &ops::gather,       &ops::scatter,        &ops::barrier,
    &ops::all_gather_v, &ops::enter,        &ops::ring_attention, &ops::ring_attention_grad,
    &ops::print,        &ops::report_norms, &ops::require_finite};

}  // namespace

AxisRule find_axis_rule(const OpDef& op) { return find(kRows, op); }
AxisRule find_elementwise_rule(const OpDef& op) { return find(kElementwise, op); }

bool has_placement_rule(const OpDef& op) {
  const auto in = [&](const auto& list) { return std::find(std::begin(list), std::end(list), &op) != std::end(list); };
  return find_axis_rule(op) != nullptr || find_elementwise_rule(op) != nullptr ||
         find_source_placement(op) != nullptr || in(kCommunication) || in(kNotFollowed);
}

}  // namespace prun::verify
