// Convolutions and pools: samples may be divided over ranks, channels and spatial dims may not.
//
// Surprising fact: a convolution is linear in its image and in its weight, and so is the mean of a pool, so partial
// sums of one operand give partial sums; a maximum reads whole values.
#include <fmt/format.h>

#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {
namespace {

AxisOutcome reads_part(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  return bad(read, fmt::format("slides over dim {} of which each rank has a part over {}", reads[read].dim, axis.axis));
}

bool by_samples(const AxisPlacement& placement) { return is_shard(placement) && placement.dim == 0; }

}  // namespace

// Operands: an image, a weight, a bias?. conv_transpose is the same without a bias.
AxisOutcome conv(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &x = reads[0], &w = reads[1];
  if (is_shard(x) && x.dim > 0) return reads_part(axis, reads, 0);
  for (size_t r = 1; r < reads.size(); r++)
    if (is_shard(reads[r])) return do_not_match(axis, reads, r);
  const bool bias = reads.size() > 2;
  if (bias && !whole(reads[2])) return needs_whole(axis, 2);
  if (is_partial(x) || is_partial(w)) {
    if (bias) return bad(2, fmt::format("adds a bias to each rank's partial sum over {}", axis.axis));
    if (whole(w)) return gives({x});
    return whole(x) ? gives({w}) : do_not_match(axis, reads, 1);
  }
  return gives({by_samples(x) ? x : kInvariant});
}

// Operands: an image and the gradient of the result. Results: the gradients of the weight and the bias, sums over
// samples.
AxisOutcome conv_dw(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &x = reads[0], &dy = reads[1];
  for (size_t r = 0; r < 2; r++)
    if (is_shard(reads[r]) && reads[r].dim > 0) return reads_part(axis, reads, r);
  if (by_samples(x) && by_samples(dy) && cut_alike(x, dy)) return gives({partial(axis.combine), partial(axis.combine)});
  if (whole(x) && is_partial(dy)) return gives({dy, dy});
  if (is_partial(x) && whole(dy)) return gives({x, kInvariant});
  if (whole(x) && whole(dy)) return gives({kInvariant, kInvariant});
  return do_not_match(axis, reads, 1);
}

// pooling, and pooling_grad, which reads the gradient and, of a maximum, the image. Channels do not mix.
AxisOutcome pool(const AxisView& axis, const AxisPlacements& reads) {
  const bool largest = axis.context.op.attrs.text("op") == "max", gradient = axis.context.op.is(ops::pooling_grad);
  for (size_t r = 0; r < reads.size(); r++)
    if (is_shard(reads[r]) && reads[r].dim > 1) return reads_part(axis, reads, r);
  if (reads.size() > 1) {  // linear in the gradient alone
    if (is_partial(reads[1])) return needs_whole(axis, 1);
    if (is_shard(reads[0]) != is_shard(reads[1]) && !is(reads[0], Kind::zero)) return do_not_match(axis, reads, 1);
    if (is_shard(reads[0]) && (reads[0].dim != reads[1].dim || !cut_alike(reads[0], reads[1])))
      return do_not_match(axis, reads, 1);
  }
  if (largest && !gradient && is_partial(reads[0])) return needs_whole(axis, 0);
  return gives({reads[0]});
}

}  // namespace prun::verify::rules
