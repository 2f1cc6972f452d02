// A shard begins at a different element on each rank, but one program serves all ranks of a class. So the pieces of a
// sharded vector are numbered in the whole vector, and the kernel finds its own by the rank's index on the axis.
#include "compile/update_settings.h"

#include <algorithm>

namespace prun {
namespace {

struct Piece {
  int64_t start = 0;  // an element of the unit's flat vector
  double lr = 1, decay = 0;
};

// Returns the pieces of the unit's flat vector with different settings, in the layout's order.
std::vector<Piece> pieces_of(const CompileState& state, UnitId unit) {
  const std::vector<ValueId>& parameters = state.graph.units[unit].parameters;
  std::vector<Piece> pieces;
  for (size_t i = parameters.size(); i-- > 0;) {
    const ParameterGroup settings = state.plan.optimizer.settings_of(state.graph.values[parameters[i]]);
    if (pieces.empty() || pieces.back().lr != settings.lr || pieces.back().decay != settings.weight_decay)
      pieces.push_back({state.layouts[unit].start[i], settings.lr, settings.weight_decay});
  }
  return pieces;
}

// Moves the starts to the range of the op, and drops the pieces outside.
void cut(std::vector<Piece>& pieces, int64_t first, int64_t count) {
  for (Piece& piece : pieces) piece.start -= first;
  const auto begin = std::find_if(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.start > 0; });
  pieces.erase(pieces.begin(), std::prev(begin));
  pieces.front().start = 0;
  std::erase_if(pieces, [&](const Piece& piece) { return piece.start >= count; });
}

}  // namespace

void set_update_settings(const CompileState& state, UnitId unit, int64_t first, int64_t count, Attrs& attrs) {
  const std::string& axis = state.shard_axis(unit);
  std::vector<Piece> pieces = pieces_of(state, unit);
  if (axis.empty()) cut(pieces, first, count);
  if (pieces.size() == 1) {
    attrs.set("weight_decay", pieces.front().decay);
    if (pieces.front().lr != 1) attrs.set("lr_factor", pieces.front().lr);
    return;
  }
  std::vector<int64_t> starts;
  std::vector<double> factors, decays;
  for (const Piece& piece : pieces) {
    starts.push_back(axis.empty() ? piece.start : piece.start - first);
    factors.push_back(piece.lr);
    decays.push_back(piece.decay);
  }
  attrs.set("piece_starts", starts);
  attrs.set("piece_lr_factors", factors);
  attrs.set("piece_weight_decays", decays);
  if (axis.empty()) return;
  attrs.set("axis", axis);
  attrs.set("shard", state.storage[unit].shard);
}

}  // namespace prun
