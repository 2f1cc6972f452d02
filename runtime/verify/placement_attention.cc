// Attention, rotary embeddings and dropout: ops that know which head, token or column an element is.
//
// Surprising fact: a rank's columns are whole heads only where q, k and v were cut each by itself.
#include <fmt/format.h>

#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {

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

namespace {

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

}  // namespace

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

}  // namespace prun::verify::rules
