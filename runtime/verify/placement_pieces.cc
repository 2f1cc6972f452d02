// Join and cut pieces around collectives that move contiguous memory.
#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {

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

AxisOutcome take_slots(const AxisView& axis, const AxisPlacements& reads) {
  if (!axis("axis")) return gives({reads[0]});
  if (!whole(reads[0])) return do_not_match(axis, reads, 0);
  return gives({kSlotsOfExperts});
}

}  // namespace prun::verify::rules
