// Shards of flat vectors. Each rank's shard holds other parameters, which may have different placements over the other
// axes, so a property of the shard must hold for each of them.
#include <fmt/format.h>

#include <algorithm>

#include "verify/values.h"

namespace prun::verify {

// Returns the placement of the layout's piece at an element; padding is zero.
AxisPlacements PlacementFlow::on_axes_at(const Layout& layout, int64_t element) const {
  auto piece = std::upper_bound(layout.pieces.begin(), layout.pieces.end(), element,
                                [](int64_t at, const Piece& one) { return at < one.begin; });
  if (piece != layout.pieces.begin() && element < (--piece)->end) return on_axes(piece->by_axis);
  return all(kZero);
}

std::vector<int64_t> PlacementFlow::borders_of(const std::vector<const Layout*>& layouts) const {
  std::vector<int64_t> borders;
  for (const Layout* layout : layouts)
    for (const Piece& piece : layout->pieces) borders.insert(borders.end(), {piece.begin, piece.end});
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

// Copies the placements on the axes that shard the vector.
void PlacementFlow::take_axes(const Layout& layout, const AxisPlacements& from, AxisPlacements& to) const {
  for (const size_t a : layout.axes) to[a] = from[a];
}

// Merges the placements of the pieces on all axes except those that shard the vector.
int PlacementFlow::joined_pieces(const Layout& layout, const AxisPlacements& on_its_axes) {
  std::vector<TensorPlacement> of_pieces;
  of_pieces.reserve(layout.pieces.size());
  for (const Piece& piece : layout.pieces) of_pieces.push_back({piece.by_axis});
  std::vector<const TensorPlacement*> placements;
  placements.reserve(of_pieces.size());
  for (const TensorPlacement& placement : of_pieces) placements.push_back(&placement);
  AxisPlacements result = placements.empty() ? all(kZero) : on_axes(joined(placements));
  take_axes(layout, on_its_axes, result);
  return id_of(result);
}

TensorPlacement PlacementFlow::each_piece(const TensorPlacement& placement,
                                          const std::function<void(size_t, AxisPlacement&)>& change) {
  AxisPlacements outer = on_axes(placement.by_axis);
  TensorPlacement result = placement;
  if (placement.layout < 0) {
    for (size_t a = 0; a < axes_.size(); a++) change(a, outer[a]);
    result.by_axis = id_of(outer);
    return result;
  }
  Layout layout = layouts_[placement.layout];
  for (const size_t a : layout.axes) change(a, outer[a]);
  for (Piece& piece : layout.pieces) {
    AxisPlacements inner = on_axes(piece.by_axis);
    for (size_t a = 0; a < axes_.size(); a++)
      if (!layout.is_over(a)) change(a, inner[a]);
    piece.by_axis = id_of(inner);
  }
  result.by_axis = joined_pieces(layout, outer);
  result.layout = id_of(std::move(layout));
  return result;
}

// Applies an elementwise op to one segment of each operand; shards of one flat vector are processed piece by piece.
std::vector<TensorPlacement> PlacementFlow::follow_pieces(const OpContext& context, AxisRule rule,
                                                          const std::vector<const ValueState*>& state, bool& right) {
  std::vector<const Layout*> of_operands(state.size(), nullptr), layouts;
  const Layout* first = nullptr;
  for (size_t r = 0; r < state.size(); r++) {
    if (state[r]->placement.layout < 0) continue;
    const Layout* layout = &layouts_[state[r]->placement.layout];
    if (first == nullptr) first = layout;
    if (layout->axes != first->axes && std::ranges::is_permutation(layout->axes, first->axes)) {
      context.report("placement",
                     fmt::format("takes shards cut over {} together with shards cut over {}: these are different "
                                 "elements",
                                 names_of(first->axes), names_of(layout->axes)),
                     *state[r]);
      right = false;
    }
    if (layout->axes != first->axes || layout->elements != first->elements) continue;
    of_operands[r] = layout;
    layouts.push_back(layout);
  }
  std::vector<int64_t> borders = borders_of(layouts);
  if (borders.size() < 2) borders = {0, 1};
  const std::vector<size_t> axes = first->axes;
  const int64_t elements = first->elements;
  const std::vector<TensorId>& reads = context.op.reads;
  std::vector<std::vector<Piece>> pieces(context.writes.size());
  std::vector<AxisPlacements> on_its_axes(context.writes.size());
  for (size_t i = 0; i + 1 < borders.size(); i++) {
    std::vector<AxisPlacements> operands;
    for (size_t r = 0; r < state.size(); r++) {
      const AxisPlacements& outer = on_axes(state[r]->placement.by_axis);
      operands.push_back(of_operands[r] ? on_axes_at(*of_operands[r], borders[i]) : outer);
      for (const size_t a : axes) operands.back()[a] = outer[a];
    }
    std::vector<AxisPlacements> results(context.writes.size(), all(kUnknown));
    for (size_t a = 0; a < axes_.size(); a++) {
      AxisPlacements here;
      for (const AxisPlacements& operand : operands) here.push_back(operand[a]);
      const AxisOutcome outcome = on_axis(context, rule, a, here);
      if (!outcome.problem.empty()) context.report("placement", outcome.problem, *state[outcome.read]);
      right = right && outcome.problem.empty();
      for (size_t w = 0; w < results.size(); w++) {
        AxisPlacement made = outcome.problem.empty() ? outcome.writes[w] : kUnknown;
        // An in-place update holds the same parameters as before, whatever the placement of the gradient.
        const size_t updated = std::find(reads.begin(), reads.end(), context.op.writes[w]) - reads.begin();
        if (made.kind == PlacementKind::unknown && updated < reads.size() && of_operands[updated])
          made = operands[updated][a];
        results[w][a] = made;
      }
    }
    for (size_t w = 0; w < results.size(); w++) {
      on_its_axes[w] = results[w];
      for (const size_t a : axes) results[w][a] = kInvariant;
      pieces[w].push_back({borders[i], borders[i + 1], id_of(results[w])});
    }
  }
  std::vector<TensorPlacement> placements;
  for (size_t w = 0; w < pieces.size(); w++) {
    Layout layout{axes, elements, std::move(pieces[w])};
    TensorPlacement placement{joined_pieces(layout, on_its_axes[w])};
    placement.layout = id_of(std::move(layout));
    placements.push_back(placement);
  }
  return placements;
}

}  // namespace prun::verify
