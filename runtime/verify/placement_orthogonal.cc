// Muon's ops. They read vectors in which each matrix has its own placement: flat vectors of units, and the ranks' parts
// of such vectors side by side.
//
// Surprising fact: the order of a joined matrix's rows or columns does not matter, because orthogonalization commutes
// with permutations. So it is joined from the ranks' parts as they are stored.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "ir/ops.h"
#include "verify/placement_rules.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

constexpr const char* kPlacementOfMatrices = "placement";

bool names_axis(const std::string& axes, const std::string& axis) {
  const std::vector<std::string> names = split(axes, ',');
  return std::find(names.begin(), names.end(), axis) != names.end();
}

}  // namespace

// Each parameter keeps its place in the part of its rank.
void PlacementFlow::gather_parameters(OpContext& context, size_t axis) {
  const Tensor &from = *context.read_tensors[0], &to = *context.write_tensors[0];
  context.writes[0].clear();
  if (to.count() != from.count() * sizes_[axis]) return;
  for (int rank = 0; rank < sizes_[axis]; rank++) {
    for (const Segment& segment : context.reads[0]) {
      AxisPlacements placements = on_axes(segment.state.placement.by_axis);
      AxisPlacement& here = placements[axis];
      const bool shards = segment.state.placement.layout >= 0;
      if (rank == 0 && (here.kind == PlacementKind::invariant || here.kind == PlacementKind::partial || shards))
        context.report(kPlacementOfMatrices,
                       fmt::format("gathers matrices over {}, and they are {} there", axes_[axis],
                                   shards ? "shards of a flat vector" : placement_words(here)),
                       segment.state);
      if (here.kind == PlacementKind::shard) {
        const int8_t dim = here.dim;
        here = kInvariant;
        here.pieces = dim;
      }
      Segment copy = segment;
      const int64_t shift = to.byte_offset - from.byte_offset + rank * from.bytes();
      copy.begin += shift, copy.end += shift;
      copy.state = {};
      copy.state.placement = segment.state.placement;
      copy.state.placement.by_axis = id_of(placements);
      context.writes[0].push_back(copy);
    }
  }
}

// The chunk is its owner's: over the owners' axes it is a part of the vector of all chunks.
void PlacementFlow::orthogonalize(OpContext& context) {
  const Attrs& attrs = context.op.attrs;
  const std::vector<int64_t> of = attrs.integers("of"), starts = attrs.integers("starts"),
                             rows = attrs.integers("rows"), columns = attrs.integers("columns"),
                             joined = attrs.integers("joined");
  const std::string axes = attrs.text("axes");
  AxisPlacements result = all(kInvariant);
  for (size_t a = 0; a < axes_.size(); a++)
    if (names_axis(axes, axes_[a])) result[a] = shard(0);
  // `how`: which of a matrix's dims the ranks' parts divide, as `joined`; `divided`: the dim of the parameter.
  const auto look = [&](const Segment& segment, int64_t how, int64_t divided) {
    const AxisPlacements& placements = on_axes(segment.state.placement.by_axis);
    bool joins = false;
    for (size_t a = 0; a < axes_.size(); a++) {
      const AxisPlacement& here = placements[a];
      const bool owned = names_axis(axes, axes_[a]);
      joins = joins || (how > 0 && here.pieces == divided);
      const bool part = here.kind == PlacementKind::partial || (here.kind == PlacementKind::shard && owned) ||
                        segment.state.placement.layout >= 0 ||
                        (here.pieces >= 0 && (how == 0 || here.pieces != divided));
      if (part)
        return context.report(
            kPlacementOfMatrices,
            fmt::format("orthogonalizes parts of matrices over {}: {}", axes_[a], placement_words(here)),
            segment.state);
      if (here.kind == PlacementKind::varying || here.kind == PlacementKind::unknown) result[a] = here;
      if (here.kind == PlacementKind::shard) result[a] = shard(0);
    }
    if (how > 0 && !joins)
      context.report(kPlacementOfMatrices, "joins parts of a matrix that is not split so", segment.state);
  };
  for (size_t i = 0; i < of.size() && i < joined.size(); i++) {
    if (of[i] < 0 || of[i] >= std::ssize(context.reads)) continue;
    const Tensor& tensor = *context.read_tensors[of[i]];
    const int64_t begin = tensor.byte_offset + starts[i] * dtype_bytes(tensor.dtype),
                  end = begin + rows[i] * columns[i] * dtype_bytes(tensor.dtype);
    const int64_t divided =
        joined[i] > 0 ? joined[i] - 1 + dims_before_matrix(context.body, context.op, of[i], starts[i]) : 0;
    for (const Segment& segment : context.reads[of[i]])
      if (segment.begin < end && begin < segment.end) look(segment, joined[i], divided);
  }
  context.writes[0] = whole(*context.write_tensors[0], {id_of(result)});
}

// Parameters keep their placement. The updates must be whole, except over axes whose ranks have other matrices.
void PlacementFlow::apply_update(OpContext& context) {
  context.writes[0] = context.reads[1];
  const int64_t shift = context.write_tensors[0]->byte_offset - context.read_tensors[1]->byte_offset;
  for (Segment& segment : context.writes[0]) {
    const TensorPlacement placement = segment.state.placement;
    segment.begin += shift, segment.end += shift;
    segment.state = {};
    segment.state.placement = placement;
  }
  for (const Segment& update : context.reads[0]) {
    const AxisPlacements& placements = on_axes(update.state.placement.by_axis);
    for (size_t a = 0; a < axes_.size(); a++) {
      if (sizes_[a] == 1) continue;  // the axis of padding, which the update of any matrix may have
      const AxisPlacement& here = placements[a];
      const auto is_shard_here = [&](const Segment& segment) {
        const AxisPlacement& parameter = on_axes(segment.state.placement.by_axis)[a];
        return parameter.kind == PlacementKind::shard && parameter.dim != kFlat;
      };
      const bool own = here.kind == PlacementKind::shard &&
                       std::any_of(context.reads[1].begin(), context.reads[1].end(), is_shard_here);
      if (here.kind == PlacementKind::partial || (here.kind == PlacementKind::shard && !own))
        return context.report(kPlacementOfMatrices,
                              fmt::format("updates parameters with {} over {}, where all matrices are due",
                                          placement_words(here), axes_[a]),
                              update.state);
    }
  }
}

}  // namespace prun::verify
