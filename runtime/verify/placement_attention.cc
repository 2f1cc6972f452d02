// Attention, rotary embeddings and dropout: ops that depend on the head, token or column of an element.
//
// Surprising fact: a rank's columns are whole heads only if q, k and v were each split by itself.
#include <fmt/format.h>

#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {

namespace {

// Requires, over an axis that splits columns, that q, k and v (with `keys`: only k and v) are blocks of these sizes and
// that each is split by itself. Returns the problem; "" = none.
std::string blocks_problem(const AxisView& axis, const AxisPlacements& reads, size_t read, int64_t q, int64_t k,
                           bool keys = false) {
  std::vector<int64_t> blocks = {q, k, k};
  if (keys) blocks.erase(blocks.begin());
  if (column_blocks(axis, reads, read) == blocks) return "";
  return fmt::format(
      "takes {} columns for whole heads of q, k and v, and over {} they are {}: the layer that makes them needs blocks "
      "= {{ {}, {}, {} }}, to cut each by itself",
      axis.context.read_tensors[read]->shape.back(), axis.axis, placement_words(reads[read]), q, k, k);
}

// Requires what blocks_problem requires, and that each rank has as many whole heads of each block as the op counts.
std::string heads_problem(const AxisView& axis, const AxisPlacements& reads, size_t read, bool keys = false) {
  const Attrs& attrs = axis.context.op.attrs;
  const int64_t heads = attrs.integer("heads", 1), shared = attrs.integer("kv_heads", heads),
                all = attrs.integer("of_heads");
  if (heads * axis.ranks != all)
    return fmt::format("counts {} heads on each of the {} ranks of {}, and there are {} in all", heads, axis.ranks,
                       axis.axis, all);
  const int64_t here = axis.context.read_tensors[read]->shape.back();
  const int64_t size = here / (keys ? 2 * shared : heads + 2 * shared) * axis.ranks;
  return blocks_problem(axis, reads, read, heads * size, shared * size, keys);
}

}  // namespace

AxisOutcome attention(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (is_shard(reads[0]) && reads[0].dim == 0) return gives({shard(0), shard(0)});
  if (by_columns(axis, reads, 0)) {
    const std::string problem = heads_problem(axis, reads, 0);
    return problem.empty() ? gives({shard(2), shard(1)}) : bad(0, problem);
  }
  if (is_shard(reads[0]))
    return bad(0, fmt::format("attends to the rank's own tokens only, of those split over {}", axis.axis));
  return gives({kInvariant, kInvariant});
}

// Operands: qkv, positions, cache. A rank keeps the keys and values of its own heads from step to step.
AxisOutcome cached_attention(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (!whole(reads[1])) return do_not_match(axis, reads, 1);
  if (whole(reads[0])) return whole(reads[2]) ? gives({kInvariant, kInvariant}) : do_not_match(axis, reads, 2);
  if (!by_columns(axis, reads, 0))
    return bad(0, fmt::format("attends to the rank's own tokens only, of those split over {}", axis.axis));
  const std::string problem = heads_problem(axis, reads, 0);
  if (!problem.empty()) return bad(0, problem);
  std::vector<int64_t> blocks = column_blocks(axis, reads, 0);
  blocks.erase(blocks.begin());
  const AxisPlacement kept = shard(2, cut_into(std::move(blocks), axis.ranks));
  if (!is(reads[2], Kind::zero) && reads[2] != kept) return do_not_match(axis, reads, 2);
  return gives({shard(2), kept});
}

// All ranks choose the same token, so each needs all logits.
AxisOutcome sample_token(const AxisView& axis, const AxisPlacements& reads) {
  const bool padded = axis.pads() && by_columns(axis, reads, 0);
  if (padded && axis.context.op.attrs.integer("vocab") == column_blocks(axis, reads, 0).front()) return gives({});
  return whole(reads[0]) ? gives({})
                         : bad(0, fmt::format("chooses a token from logits that are {} over {}",
                                              placement_words(reads[0]), axis.axis));
}

// Ranks write rows of their own samples, each with all columns, and with all tokens or the rank's.
AxisOutcome write_rows(const AxisView& axis, const AxisPlacements& reads) {
  const bool padded = axis.pads() && by_columns(axis, reads, 0);
  if (padded && axis.context.op.attrs.integer("vocab") == column_blocks(axis, reads, 0).front()) return gives({});
  const bool divides = axis.names("data_axes");
  if (axis.names("once") && (divides || axis.names("tokens_axis")))
    return bad(0, fmt::format("writes what one rank of {} has, and each has another part", axis.axis));
  if (axis.names("tokens_axis")) {
    const std::string problem = tokens_problem(axis, reads);
    return problem.empty() ? gives({}) : bad(0, problem);
  }
  if (divides && reads[0] == shard(0)) return gives({});
  return !divides && whole(reads[0])
             ? gives({})
             : bad(0, fmt::format("writes rows that are {} over {}", placement_words(reads[0]), axis.axis));
}

// Operands: qkv, out, dout, lse.
AxisOutcome attention_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (by_columns(axis, reads, 0)) {
    const std::string problem = heads_problem(axis, reads, 0);
    if (!problem.empty()) return bad(0, problem);
    return reads[1] == shard(2) && reads[2] == shard(2) ? gives({reads[0]}) : do_not_match(axis, reads, 2);
  }
  if (is_shard(reads[0]) && reads[0] == reads[2]) return gives({reads[0]});
  if (whole(reads[0]) && (whole(reads[2]) || is_partial(reads[2]))) return gives({reads[2]});
  return do_not_match(axis, reads, 2);
}

namespace {

// Returns whether operand `read` is a run of columns that are `heads` whole heads on each rank.
bool has_heads(const AxisView& axis, const AxisPlacements& reads, size_t read, int64_t heads) {
  return by_columns(axis, reads, read) && is_one_run(reads[read]) &&
         axis.context.read_tensors[read]->shape.back() % heads == 0;
}

// Returns how an attention with separate tensors is divided over the axis, as the placement of q; `rest` is the index
// of its first optional operand. A problem is in `wrong`.
AxisPlacement divided_attend(const AxisView& axis, const AxisPlacements& reads, size_t rest, AxisOutcome& wrong) {
  const Attrs& attrs = axis.context.op.attrs;
  for (const size_t r : {0u, 1u, 2u})
    if (is_partial(reads[r])) return wrong = needs_whole(axis, r), kInvariant;
  const auto differs = [&](size_t r) { return wrong = do_not_match(axis, reads, r), kInvariant; };
  const AxisPlacement& q = reads[0];
  if (is_shard(q) && q.dim == 0) {
    for (size_t r = 1; r < reads.size(); ++r)
      if ((r < 3 || r >= rest) && reads[r] != q) return differs(r);
    return q;
  }
  const bool tokens = is_shard(q) && q.dim == 1;
  for (size_t r = rest; r < reads.size(); ++r) {
    const bool a_row_each =
        axis.context.read_tensors[r]->shape.size() == 3 && axis.context.read_tensors[r]->shape[1] > 1;
    if (tokens && a_row_each ? reads[r] != q : !whole(reads[r])) return differs(r);
  }
  if (by_columns(axis, reads, 0)) {
    const int64_t heads = attrs.integer("heads", 1), shared = attrs.integer("kv_heads", heads);
    if (heads * axis.ranks != attrs.integer("of_heads") || !has_heads(axis, reads, 0, heads))
      return wrong =
                 bad(0, fmt::format("takes {} of {} heads on each of the {} ranks of {}, and the columns of q are {}",
                                    heads, attrs.integer("of_heads"), axis.ranks, axis.axis, placement_words(q))),
             kInvariant;
    for (const size_t r : {1u, 2u})
      if (axis("kv_axis") ? !whole(reads[r]) : !has_heads(axis, reads, r, shared)) return differs(r);
    return q;
  }
  for (const size_t r : {1u, 2u})
    if (!whole(reads[r])) return differs(r);
  if (tokens && (attrs.integer("causal") != 0 || attrs.integer("window") != 0))
    return wrong = bad(0, fmt::format("counts the rank's queries from 0, of those split over {}", axis.axis)),
           kInvariant;
  return q;
}

}  // namespace

// Operands: q, k, v, spans?, mask?. Results: out [B,T,columns] and lse [B,heads,T].
AxisOutcome attend(const AxisView& axis, const AxisPlacements& reads) {
  AxisOutcome wrong;
  const AxisPlacement q = divided_attend(axis, reads, 3, wrong);
  if (!wrong.problem.empty()) return wrong;
  if (!is_shard(q)) return gives({kInvariant, kInvariant});
  if (q.dim == 0) return gives({q, q});
  AxisPlacement lse = q;
  lse.dim = q.dim == 1 ? 2 : 1;
  return gives({q.dim == 1 ? q : shard(2), lse});
}

// Operands: q, k, v, out, dout, lse, spans?, mask?. Keys that all ranks have get partial sums.
AxisOutcome attend_grad(const AxisView& axis, const AxisPlacements& reads) {
  AxisOutcome wrong;
  const AxisPlacement q = divided_attend(axis, reads, 6, wrong);
  if (!wrong.problem.empty()) return wrong;
  const AxisPlacement& dout = reads[4];
  if (!is_shard(q)) {
    if (!whole(dout) && !is_partial(dout)) return do_not_match(axis, reads, 4);
    return gives({dout, dout, dout});
  }
  if (!is_shard(dout) || dout.dim != q.dim) return do_not_match(axis, reads, 4);
  const bool keys_whole = q.dim != 0 && whole(reads[1]);
  return gives({q, keys_whole ? partial(axis.combine) : reads[1], keys_whole ? partial(axis.combine) : reads[2]});
}

namespace {

// Rotated heads come first; a rank has its part of each block of them.
AxisOutcome rotated(const AxisView& axis, const AxisPlacements& reads) {
  if (!by_columns(axis, reads, 0)) return gives({reads[0]});
  const Attrs& attrs = axis.context.op.attrs;
  const int64_t size = attrs.integer("size"), heads = attrs.integer("heads"), all = attrs.integer("of_heads");
  if (heads * axis.ranks != all)
    return bad(0, fmt::format("turns {} heads on each of the {} ranks of {}, and there are {} in all", heads,
                              axis.ranks, axis.axis, all));
  int64_t left = all * size;  // rotated columns after the blocks so far
  for (const int64_t block : column_blocks(axis, reads, 0)) {
    if (left <= 0) break;
    left = block % (axis.ranks * size) == 0 ? left - block : -1;
  }
  if (left == 0) return gives({reads[0]});
  return bad(0, fmt::format("turns the first {} columns for whole heads of {}, and over {} they are {}: the layer that "
                            "makes them needs blocks that are whole heads on each rank",
                            heads * size, size, axis.axis, placement_words(reads[0])));
}

}  // namespace

AxisOutcome rotary(const AxisView& axis, const AxisPlacements& reads) {
  const std::string problem = tokens_problem(axis, reads);
  return problem.empty() ? rotated(axis, reads) : bad(0, problem);
}

// Operands: x, positions. A rank has the positions of its own tokens.
AxisOutcome rotary_at(const AxisView& axis, const AxisPlacements& reads) {
  const bool tokens = by_rows(axis, reads, 0);
  if (tokens ? reads[1] != reads[0] : !whole(reads[1])) return do_not_match(axis, reads, 1);
  return rotated(axis, reads);
}

// The last columns of each rank are the keys and values only if q, k and v are each split by itself.
AxisOutcome copy_kv(const AxisView& axis, const AxisPlacements& reads) {
  if (!by_columns(axis, reads, 0)) return gives({reads[0]});
  const int64_t here = axis.context.read_tensors[0]->shape.back(), kept = axis.context.write_tensors[0]->shape.back();
  const int64_t q = (here - kept) * axis.ranks, k = kept * axis.ranks / 2;
  const std::string problem = blocks_problem(axis, reads, 0, q, k);
  return problem.empty() ? gives({shard(reads[0].dim, cut_into({k, k}, axis.ranks))}) : bad(0, problem);
}

// Concatenates dq and dkv.
AxisOutcome join_qkv(const AxisView& axis, const AxisPlacements& reads) {
  if (!by_columns(axis, reads, 0) || !by_columns(axis, reads, 1)) return linear_elementwise(axis, reads);
  std::vector<int64_t> blocks = column_blocks(axis, reads, 0);
  for (const int64_t block : column_blocks(axis, reads, 1)) blocks.push_back(block);
  return gives({shard(reads[0].dim, cut_into(std::move(blocks), axis.ranks))});
}

// The mask depends on the element's index in the batch.
AxisOutcome dropout(const AxisView& axis, const AxisPlacements& reads) {
  const Attrs& attrs = axis.context.op.attrs;
  const AxisPlacement& x = reads[0];
  const bool rows = by_rows(axis, reads, 0) && x.dim == 0, columns = by_columns(axis, reads, 0);
  const std::string problem = tokens_problem(axis, reads);
  if (!problem.empty()) return bad(0, problem);
  if (rows != axis.names("rows_axis"))
    return bad(0, fmt::format("draws its mask for {} samples over {}, which are {}", rows ? "all" : "a rank's",
                              axis.axis, placement_words(x)));
  if (columns != axis("split_axis"))
    return bad(0, fmt::format("draws its mask for {} columns over {}, which are {}", columns ? "all" : "a rank's",
                              axis.axis, placement_words(x)));
  if (!columns) return gives({x});
  const int64_t width = column_blocks(axis, reads, 0).front();
  if (!is_one_run(x) || attrs.integer("width") != width)
    return bad(0, fmt::format("draws its mask for a run of {} columns over {}, and they are {}", attrs.integer("width"),
                              axis.axis, placement_words(x)));
  return gives({x});
}

namespace {

// Ring attention: a rank's queries against the keys of one rank per hop. A result after some of the hops has `turn` =
// hops done, and after all hops turn 0.
struct Hops {
  int hop, ranks;
  const Cut* cut;  // cut of the queries' tokens
  Hops(const AxisView& axis, const AxisPlacement& q)
      : hop(static_cast<int>(axis.context.op.attrs.integer("hop"))), ranks(axis.ranks), cut(q.cut) {}
  AxisPlacement after(int dim) const {
    AxisPlacement placement = shard(dim, cut);
    placement.turn = static_cast<int16_t>((hop + 1) % ranks);
    return placement;
  }
};

}  // namespace

AxisOutcome attention_block(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &q = reads[0], &kv = reads[1];
  for (const size_t r : {0u, 1u})
    if (is_partial(reads[r])) return needs_whole(axis, r);
  if (axis("tokens_axis")) {
    const Hops hops(axis, q);
    const std::string problem = tokens_problem(axis, reads);
    if (!problem.empty()) return bad(0, problem);
    if (!is_shard(q) || q.dim != 1 || q.turn != 0 || !is_shard(kv) || q.cut != kv.cut)
      return do_not_match(axis, reads, 1);
    if (kv.turn != hops.hop % hops.ranks)
      return bad(
          1, fmt::format("takes keys from {} ranks before along {} for those of hop {}", kv.turn, axis.axis, hops.hop));
    if (hops.hop > 0 && axis.context.op.is(ops::attention_block) &&
        (reads.size() < 4 || reads[2].turn != hops.hop % hops.ranks))
      return bad(1, fmt::format("is hop {} along {}, and the hops before it are not all done", hops.hop, axis.axis));
    return gives({hops.after(1), hops.after(2)});
  }
  if (by_columns(axis, reads, 0) && by_columns(axis, reads, 1)) {
    std::string problem = heads_problem(axis, reads, 0);
    if (problem.empty()) problem = heads_problem(axis, reads, 1, true);
    return problem.empty() ? gives({shard(2), shard(1)}) : bad(0, problem);
  }
  if (q != kv) return do_not_match(axis, reads, 1);
  return gives({q});
}

// Operands: qkv, kv, out, dout, lse, dq?. Results: dq and the contribution of these queries to dkv.
AxisOutcome attention_block_grad(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &q = reads[0], &kv = reads[1], &dout = reads[3];
  if (axis("tokens_axis")) {
    const Hops hops(axis, q);
    const AxisOutcome forward = attention_block(axis, reads);
    if (!forward.problem.empty()) return forward;
    if (dout != q) return do_not_match(axis, reads, 3);
    if (hops.hop > 0 && (reads.size() < 6 || reads[5].turn != hops.hop % hops.ranks))
      return bad(1, fmt::format("is hop {} along {}, and the hops before it are not all done", hops.hop, axis.axis));
    return gives({hops.after(1), kv});
  }
  if (by_columns(axis, reads, 0)) {
    const AxisOutcome forward = attention_block(axis, reads);
    if (!forward.problem.empty()) return forward;
    return dout == shard(2) ? gives({shard(2), kv}) : do_not_match(axis, reads, 3);
  }
  if (q != kv || (q != dout && !is_partial(dout))) return do_not_match(axis, reads, 3);
  return gives({dout, dout});
}

}  // namespace prun::verify::rules
