// Linear layers, biases, norms of rows, and tables: the placement of the weight determines that of the result.
//
// Surprising fact: it is not enough that both operands are sharded along the contracted dim; they must be cut alike.
#include <fmt/format.h>

#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {

namespace {

// Reports a contraction whose operands are cut differently.
AxisOutcome other_columns(const AxisView& axis, const AxisPlacement& x, const AxisPlacement& w) {
  return bad(0, fmt::format("multiplies what is cut differently over {}: {}, with {} of the weight", axis.axis,
                            placement_words(x), placement_words(w)));
}

}  // namespace

// y = act(x·w + b).
AxisOutcome linear(const AxisView& axis, const AxisPlacements& reads) {
  const Op& op = axis.context.op;
  const AxisPlacement &x = reads[0], &w = reads[1];
  const int k = op.attrs.integer("transpose") != 0 ? 1 : 0;
  const bool bias = reads.size() > 2;
  const bool nonlinear = bias || !op.attrs.text("act").empty();
  const int last = last_dim(axis, 0);
  if (by_columns(axis, reads, 0) && is_shard(w) && w.dim == k) {
    if (!cut_alike(x, w)) return other_columns(axis, x, w);
    if (bias) return bad(2, fmt::format("adds a bias to each rank's partial sum over {}", axis.axis));
    return nonlinear ? needs_whole(axis, 0) : gives({partial(Combine::sum)});
  }
  if (whole(x) && is_shard(w) && w.dim == 1 - k && (!bias || (is_shard(reads[2]) && cut_alike(w, reads[2]))))
    return gives({shard(last, w.cut)});
  if (is_partial(x) && whole(w)) return nonlinear ? needs_whole(axis, 0) : gives({x});
  if (by_rows(axis, reads, 0) && whole(w) && (!bias || whole(reads[2]))) return gives({x});
  if (whole(x) && whole(w) && (!bias || whole(reads[2]))) return gives({kInvariant});
  return do_not_match(axis, reads, 0);
}

AxisOutcome linear_dx(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &dy = reads[0], &w = reads[1];
  const int k = axis.context.op.attrs.integer("transpose") != 0 ? 1 : 0;
  if (by_columns(axis, reads, 0) && is_shard(w) && w.dim == 1 - k)
    return cut_alike(dy, w) ? gives({partial(Combine::sum)}) : other_columns(axis, dy, w);
  if (whole(dy) && is_shard(w) && w.dim == k) return gives({shard(last_dim(axis, 0), w.cut)});
  if (whole(w) && (is_partial(dy) || by_rows(axis, reads, 0) || whole(dy))) return gives({dy});
  return do_not_match(axis, reads, 0);
}

AxisOutcome linear_dw(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &x = reads[0], &dy = reads[1];
  const int k = axis.context.op.attrs.integer("transpose") != 0 ? 1 : 0;
  if (by_rows(axis, reads, 0) && by_rows(axis, reads, 1) && x.dim == dy.dim && cut_alike(x, dy))
    return gives({partial(axis.combine), partial(axis.combine)});
  if (by_columns(axis, reads, 0) && whole(dy)) return gives({shard(k, x.cut), kInvariant});
  if (whole(x) && by_columns(axis, reads, 1)) return gives({shard(1 - k, dy.cut), shard(0, dy.cut)});
  if (whole(x) && is_partial(dy)) return gives({dy, dy});
  if (is_partial(x) && whole(dy)) return gives({x, kInvariant});
  if (whole(x) && whole(dy)) return gives({kInvariant, kInvariant});
  return do_not_match(axis, reads, 1);
}

// pre = x·w + b; gelu may not read a partial sum.
AxisOutcome linear_gelu(const AxisView& axis, const AxisPlacements& reads) {
  const AxisOutcome pre = linear(axis, reads);
  if (!pre.problem.empty()) return pre;
  if (is_partial(pre.writes[0])) return needs_whole(axis, 0);
  return gives({pre.writes[0], pre.writes[0]});
}

// Operands: dy, w, pre. Computes linear_dx times gelu's derivative, which is a function of pre.
AxisOutcome linear_dx_gelu(const AxisView& axis, const AxisPlacements& reads) {
  const AxisOutcome product = linear_dx(axis, reads);
  if (!product.problem.empty()) return product;
  AxisOutcome dx = elementwise_grad(axis, {reads[2], product.writes[0]});
  if (!dx.problem.empty()) dx.read = dx.read == 0 ? 2 : 0;
  return dx;
}

AxisOutcome bias(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return bad(0, fmt::format("adds a bias to each rank's partial sum over {}", axis.axis));
  if (by_columns(axis, reads, 0) && is_shard(reads[1]) && cut_alike(reads[0], reads[1])) return gives({reads[0]});
  if ((by_rows(axis, reads, 0) || whole(reads[0])) && whole(reads[1])) return gives({reads[0]});
  return do_not_match(axis, reads, 1);
}

AxisOutcome bias_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (by_rows(axis, reads, 0)) return gives({partial(axis.combine)});
  if (by_columns(axis, reads, 0)) return gives({shard(0, reads[0].cut)});
  return gives({reads[0]});
}

// Row statistics have the placement of the rows.
AxisOutcome norm(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (by_columns(axis, reads, 0))
    return bad(0, fmt::format("normalizes rows of which each rank has a part over {}", axis.axis));
  for (size_t r = 1; r < reads.size(); r++)
    if (!whole(reads[r])) return do_not_match(axis, reads, r);
  return gives({reads[0]});
}

// Operands: x, dy, gamma, statistics. Results: dx and the gradients of gamma and beta.
AxisOutcome norm_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (by_rows(axis, reads, 0) && reads[0] == reads[1])
    return gives({reads[0], partial(axis.combine), partial(axis.combine)});
  if (whole(reads[0]) && (whole(reads[1]) || is_partial(reads[1]))) return gives({reads[1], reads[1], reads[1]});
  return do_not_match(axis, reads, 1);
}

// Operands: a, b, gamma, beta?. The norm reads a + b.
AxisOutcome add_norm(const AxisView& axis, const AxisPlacements& reads) {
  const AxisOutcome sum = linear_elementwise(axis, {reads[0], reads[1]});
  if (!sum.problem.empty()) return sum;
  AxisPlacements seen(reads.begin() + 1, reads.end());
  seen[0] = sum.writes[0];
  AxisOutcome outcome = norm(axis, seen);
  if (outcome.read > 0) outcome.read++;
  return outcome;
}

// norm_grad with one more operand, a gradient that is added to dx.
AxisOutcome norm_grad_add(const AxisView& axis, const AxisPlacements& reads) {
  AxisOutcome outcome = norm_grad(axis, reads);
  if (!outcome.problem.empty()) return outcome;
  const AxisPlacements terms = {outcome.writes[0], reads.back()};
  const Agreement dx = agreement(terms, 0, 2);
  if (!dx.agree) return do_not_match(axis, terms, reads.size() - 1);
  outcome.writes[0] = dx.placement;
  return outcome;
}

AxisOutcome embedding(const AxisView& axis, const AxisPlacements& reads) {
  if (reads.size() > 2 && is_shard(reads[0]) && reads[0].dim == 1)
    return bad(0, fmt::format("adds the first positions to the rank's own tokens, of those split over {}", axis.axis));
  const bool rows = (axis("axis") || axis.pads()) && is_shard(reads[1]) && reads[1].dim == 0 && is_one_run(reads[1]);
  if (rows && whole(reads[0])) {
    const int64_t has = reads[1].cut != nullptr ? reads[1].cut->blocks.front()
                                                : axis.context.read_tensors[1]->shape.front() * axis.ranks;
    const int64_t valid = axis.context.op.attrs.integer("valid", has);
    if (valid != has) return bad(1, fmt::format("takes {} rows of a table of {} over {}", valid, has, axis.axis));
    return gives({partial(Combine::sum)});
  }
  if (axis("axis") || !whole(reads[1])) return do_not_match(axis, reads, 1);
  return gives({reads[0]});
}

AxisOutcome embedding_grad(const AxisView& axis, const AxisPlacements& reads) {
  const Attrs& attrs = axis.context.op.attrs;
  if (axis.pads() && attrs.has("valid") && attrs.text("axis").empty()) return gives({shard(0), kInvariant});
  if (axis("axis"))
    return whole(reads[0]) && whole(reads[1]) ? gives({shard(0), kInvariant}) : do_not_match(axis, reads, 1);
  if (is_shard(reads[0]) && reads[0] == reads[1]) return gives({partial(axis.combine), partial(axis.combine)});
  if (whole(reads[0]) && (whole(reads[1]) || is_partial(reads[1]))) return gives({reads[1], reads[1]});
  return do_not_match(axis, reads, 1);
}

AxisOutcome positions(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return bad(0, fmt::format("adds positions to each rank's partial sum over {}", axis.axis));
  const std::string problem = tokens_problem(axis, reads);
  if (!problem.empty()) return bad(0, problem);
  return whole(reads[1]) ? gives({reads[0]}) : do_not_match(axis, reads, 0);
}

AxisOutcome positions_grad(const AxisView& axis, const AxisPlacements& reads) {
  const std::string problem = tokens_problem(axis, reads);
  if (!problem.empty()) return bad(0, problem);
  return gives({is_shard(reads[0]) ? partial(axis.combine) : reads[0]});
}

}  // namespace prun::verify::rules
