// Losses, whole or over a vocabulary that is split. A loss adds up rows.
#include <fmt/format.h>

#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {

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

}  // namespace prun::verify::rules
