// Norms over operands with different placements: a weight per operand makes every element count once in the reduction.
//
// Surprising fact: axes over which all ranks have every element may take part in that reduction if the weights allow
// it.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "verify/values.h"

namespace prun::verify {

struct PlacementFlow::Square {
  AxisPlacements axes;
  double weight = 1;
  const ValueState* state = nullptr;
};

// Returns the operands, and the pieces of shards of flat vectors, each with its weight; padding is omitted.
std::vector<PlacementFlow::Square> PlacementFlow::squares_of(const OpContext& context) {
  const Attrs& attrs = context.op.attrs;
  std::vector<double> weights;
  std::vector<int64_t> starts;
  const bool by_piece = attrs.has("piece_weights");
  weights = attrs.numbers(by_piece ? "piece_weights" : "weights");
  if (by_piece) starts = attrs.integers("piece_starts");
  std::vector<Square> squares;
  const auto add = [&](AxisPlacements axes, double weight, const ValueState& state) {
    const bool padding =
        std::any_of(axes.begin(), axes.end(), [](const AxisPlacement& one) { return one.kind == PlacementKind::zero; });
    if (!padding) squares.push_back({std::move(axes), weight, &state});
  };
  for (size_t r = 0; r < context.reads.size(); r++) {
    for (const Segment& segment : context.reads[r]) {
      const TensorPlacement& placement = segment.state.placement;
      const double weight = !by_piece && r < weights.size() ? weights[r] : 1;
      if (placement.layout < 0) {
        add(on_axes(placement.by_axis), weight, segment.state);
        continue;
      }
      const Layout& layout = layouts_[placement.layout];
      if (by_piece && axes_in(attrs.text("axis")) != layout.axes)
        context.report("placement",
                       fmt::format("weights the pieces of a shard over {} for one over {}", names_of(layout.axes),
                                   attrs.has("axis") ? attrs.text("axis") : "no axis"),
                       segment.state);
      int64_t whole = layout.elements;
      for (const size_t a : layout.axes) whole *= sizes_[a];
      for (const Piece& piece : layout.pieces) {
        AxisPlacements axes = on_axes(piece.by_axis);
        const bool padding = axes[layout.axes.front()].kind == PlacementKind::zero;
        for (const size_t a : layout.axes)
          if (!padding) axes[a] = shard(kFlat);
        // Elements before the first start have weight 1.
        if (!by_piece || starts.empty() || piece.begin < starts.front()) add(axes, weight, segment.state);
        for (size_t p = 0; by_piece && p < starts.size(); p++) {
          const int64_t end = p + 1 < starts.size() ? starts[p + 1] : whole;
          if (std::max(starts[p], piece.begin) < std::min(end, piece.end)) add(axes, weights[p], segment.state);
        }
      }
    }
  }
  return squares;
}

// Makes the result partial along the axes that split an operand, and along axes without which the weights would be
// inconsistent.
int PlacementFlow::weighted_norm(const OpContext& context, int id) {
  const std::vector<Square> squares = squares_of(context);
  std::vector<bool> parts(axes_.size(), false);
  for (const Square& square : squares) {
    for (size_t a = 0; a < axes_.size(); a++) {
      const PlacementKind kind = square.axes[a].kind;
      if (kind == PlacementKind::unknown || kind == PlacementKind::partial) return id;
      parts[a] = parts[a] || kind != PlacementKind::invariant;
    }
  }
  const Square* wrong = nullptr;
  double counts = 1;
  std::vector<int> taken(axes_.size(), 0);
  int solutions = 0;
  for (unsigned more = 0; more < 1u << axes_.size(); more++) {
    bool possible = true, right = true;
    for (size_t a = 0; a < axes_.size(); a++) possible = possible && !((more >> a & 1) != 0 && parts[a]);
    if (!possible) continue;
    for (const Square& square : squares) {
      double count = square.weight;
      for (size_t a = 0; a < axes_.size(); a++)
        if ((parts[a] || (more >> a & 1) != 0) && square.axes[a].kind == PlacementKind::invariant) count *= sizes_[a];
      if (count > 0.999 && count < 1.001) continue;
      right = false;
      if (wrong == nullptr) wrong = &square, counts = count;
    }
    if (!right) continue;
    solutions++;
    for (size_t a = 0; a < axes_.size(); a++) taken[a] += static_cast<int>(more >> a & 1);
  }
  if (solutions == 0 && wrong != nullptr) {
    context.report("placement",
                   fmt::format("weights squares by {}: in the sum over the axes that split them they count {} times",
                               wrong->weight, counts),
                   *wrong->state);
    return 0;
  }
  AxisPlacements result = on_axes(id);
  for (size_t a = 0; a < axes_.size(); a++)
    result[a] = sizes_[a] == 1                                        ? kInvariant  // padding is zero
                : parts[a] || (taken[a] > 0 && taken[a] == solutions) ? partial(Combine::sum)
                : taken[a] > 0                                        ? kOpenSquares
                                                                      : kInvariant;
  return id_of(result);
}

}  // namespace prun::verify
