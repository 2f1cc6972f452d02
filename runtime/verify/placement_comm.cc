// The effect of communication on placements.
//
// Surprising fact: a reduction of equal values is an error, too: an average of them is right by luck, a sum is wrong.
// Only along axes that split some inputs and not others are averages of both kinds of values intended.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ir/ops.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

constexpr const char* kPlacementRule = "placement";

bool averages(const Op& op) { return op.attrs.text("op", "sum") == "avg"; }
bool picks(const Op& op) { return op.attrs.text("op", "sum") == "max" || op.attrs.text("op", "sum") == "min"; }

// Applies a reduction over an axis to a placement; returns the problem, "" = none.
std::string reduced(const Op& op, const std::string& axis, AxisPlacement& placement, bool equal = false) {
  const bool partial = placement.kind == PlacementKind::partial;
  std::string problem;
  if (placement.kind == PlacementKind::invariant && equal) {
    // An average of weights that have not drifted (drift.cc rejects a sum), or of results of inputs without tokens.
  } else if (placement.kind == PlacementKind::invariant) {
    problem = fmt::format(
        "reduces over {} what is the same on all its ranks: it was reduced before, or never was partial", axis);
  } else if (placement.kind == PlacementKind::shard) {
    problem = fmt::format("reduces over {} what are different things there: {}", axis, placement_words(placement));
  } else if (placement.differs == Differs::stages) {
    problem = fmt::format("reduces over {} what are different things there: {}", axis, placement_words(placement));
  } else if (partial && (placement.combine == Combine::max) != picks(op)) {
    problem = fmt::format("reduces over {} by {}, and {}", axis, op.attrs.text("op", "sum"),
                          picks(op) ? "these are terms of a sum" : "these are candidates for a maximum");
  } else if ((partial || placement == kOpenSquares) && placement.combine == Combine::sum && averages(op)) {
    problem = fmt::format("averages over {} what are terms of a sum, so op must be 'sum'", axis);
  } else if (partial && placement.combine == Combine::average && !averages(op)) {
    problem = fmt::format("adds over {} what each rank has scaled for an average, so op must be 'avg'", axis);
  }
  const int8_t pieces = placement.pieces;
  if (placement.kind != PlacementKind::zero) placement = kInvariant;  // also after a problem
  placement.pieces = pieces;
  return problem;
}

// Returns whether a tensor holds the loss, to which each stage of a pipeline adds its parts, and the named numbers. An
// evaluation copies those of a batch to its results.
bool are_results(const Body& body, TensorId tensor) {
  const auto ends_in = [&](TensorId to) { return to >= 0 && (to == body.loss || to == body.results); };
  return ends_in(tensor) || std::ranges::any_of(body.streams[0].ops, [&](const Op& op) {
           return op.is(ops::copy) && op.reads[0] == tensor && ends_in(op.writes[0]);
         });
}

}  // namespace

void PlacementFlow::check_same(const std::vector<OpContext>& members) {
  if (members.size() < 2 || !(members[0].op.is(ops::all_reduce) || members[0].op.is(ops::reduce_scatter))) return;
  if (are_results(*members[0].body.body, members[0].op.reads[0])) return;
  for (const size_t a : axes_of(members[0].op.axis)) {
    if (!stages_[a]) continue;
    int bring = 0;
    for (const OpContext& member : members) {
      const auto differs = [&](const Segment& segment) {
        return on_axes(segment.state.placement.by_axis)[a].kind == PlacementKind::varying;
      };
      const auto first = std::find_if(member.reads[0].begin(), member.reads[0].end(), differs);
      if (first == member.reads[0].end() || ++bring < 2) continue;
      member.report(kPlacementRule,
                    fmt::format("reduces over {} what are different things there: each stage brings its own", axes_[a]),
                    first->state);
      return;
    }
  }
}

void PlacementFlow::communicate(OpContext& context) {
  const Op& op = context.op;
  const std::vector<size_t> axes = axes_of(op.axis);
  if (op.reads.empty() || op.writes.empty()) return;
  if (axes.empty()) return alone(context);
  if (op.is(ops::all_reduce)) return reduce(context, axes);
  if (op.is(ops::all_gather) && axes.size() == 1) return gather(context, axes[0]);
  if (op.is(ops::all_to_all) || op.is(ops::exchange_rows)) check_pieces(context);
  if (op.is(ops::all_to_all) && axes.size() == 1) return exchange(context, axes[0]);
  if (op.is(ops::exchange_rows) && axes.size() == 1) return exchange_rows(context, axes[0]);
  if (op.is(ops::reduce_scatter) && axes.size() == 1) return reduce_scatter(context, axes[0]);
  std::vector<const TensorPlacement*> placements;
  for (const Segment& segment : context.reads[0]) placements.push_back(&segment.state.placement);
  AxisPlacements result = on_axes(joined(placements));
  for (const size_t a : axes) result[a] = op.is(ops::broadcast) ? kInvariant : kUnknown;
  context.writes[0] = whole(*context.write_tensors[0], {id_of(result)});
}

// A group of one rank copies, possibly adding or removing the leading dim for the ranks.
void PlacementFlow::alone(OpContext& context) {
  elementwise(context, find_elementwise_rule(ops::copy));
  const int more = std::ssize(context.write_tensors[0]->shape) - std::ssize(context.read_tensors[0]->shape);
  if (more == 0) return;
  for (Segment& segment : context.writes[0]) {
    AxisPlacements result = on_axes(segment.state.placement.by_axis);
    for (AxisPlacement& placement : result) {
      move_shard(placement, more);
      if (more < 0) placement.pieces = -1;
    }
    segment.state.placement.by_axis = id_of(result);
  }
}

void PlacementFlow::reduce(OpContext& context, const std::vector<size_t>& axes) {
  const Tensor &from = *context.read_tensors[0], &to = *context.write_tensors[0];
  if (from.count() != to.count()) return;
  const bool weights = averages_weights(*context.body.program, context.op);
  context.writes[0].clear();
  for (const Segment& segment : context.reads[0]) {
    bool others_differ = false;  // ranks of other programs contribute values that are not visible here
    TensorPlacement placement = each_piece(segment.state.placement, [&](size_t a, AxisPlacement& one) {
      if (std::find(axes.begin(), axes.end(), a) == axes.end()) return;
      others_differ = others_differ || (stages_[a] && !context.met && one.kind == PlacementKind::zero);
      const std::string problem = reduced(context.op, axes_[a], one, weights || (repeats_[a] && averages(context.op)));
      if (!problem.empty()) context.report(kPlacementRule, problem, segment.state);
    });
    if (others_differ) placement.by_axis = 0;
    if (placement.layout >= 0) placement.origin += to.byte_offset - from.byte_offset;
    const int64_t shift = to.byte_offset - from.byte_offset;
    ValueState state;
    state.placement = placement;
    context.writes[0].push_back({segment.begin + shift, segment.end + shift, state});
  }
}

// An op that sends a piece to each rank, or receives one from each, needs as many pieces as the group has ranks.
void PlacementFlow::check_pieces(const OpContext& context) {
  const Shape &from = context.read_tensors[0]->shape, &to = context.write_tensors[0]->shape;
  if (from.size() == to.size() && !context.op.is(ops::exchange_rows)) return;
  const bool arrive =
      context.op.is(ops::exchange_rows) ? context.op.attrs.integer("home") == 0 : from.size() < to.size();
  const int64_t pieces = arrive ? to.front() : from.front();
  const int ranks = context.body.program->mesh.size(context.op.axis);
  if (pieces != ranks && !context.reads[0].empty())
    context.report(kPlacementRule,
                   fmt::format("exchanges {} pieces in a group of {} along {}", pieces, ranks, context.op.axis),
                   context.reads[0].front().state);
}

// Each rank sends one run of dim 0 to each rank: afterwards dim 0 is sharded, and the dim that was sharded is whole, as
// leading pieces until join_pieces. The inverse exchange undoes both.
void PlacementFlow::exchange(OpContext& context, size_t axis) {
  const Tensor &from = *context.read_tensors[0], &to = *context.write_tensors[0];
  std::vector<const TensorPlacement*> placements;
  for (const Segment& segment : context.reads[0]) placements.push_back(&segment.state.placement);
  AxisPlacements result = on_axes(joined(placements));
  const AxisPlacement before = result[axis];
  const int more = std::ssize(to.shape) - std::ssize(from.shape);
  for (AxisPlacement& placement : result) {
    move_shard(placement, more);
    if (more < 0) placement.pieces = -1;
  }
  AxisPlacement& placement = result[axis];
  placement = kUnknown;
  if (before.kind == PlacementKind::shard && before.pieces < 0 && more == 1) {
    placement = shard(1);
    placement.pieces = before.dim;
  } else if (before.kind == PlacementKind::shard && before.pieces >= 0 && before.dim == 1 && more == -1) {
    placement = shard(before.pieces);
  } else if (more != 0 && before.kind != PlacementKind::unknown && before.kind != PlacementKind::zero &&
             before.kind != PlacementKind::varying) {
    context.report(
        kPlacementRule,
        fmt::format("exchanges over {} what is not split there so: {}", axes_[axis], placement_words(before)),
        context.reads[0].front().state);
  }
  context.writes[0] = whole(to, {id_of(result)});
}

// Packed rows [P,E,C,d]: the slots of each rank's tokens, S(2), become those of each rank's experts, S(1), or back. The
// numbers of rows must be those of all ranks, along other axes those of the rows.
void PlacementFlow::exchange_rows(OpContext& context, size_t axis) {
  const auto placements_of = [&](size_t read) {
    std::vector<const TensorPlacement*> placements;
    for (const Segment& segment : context.reads[read]) placements.push_back(&segment.state.placement);
    return on_axes(joined(placements));
  };
  AxisPlacements result = placements_of(0);
  const AxisPlacements counts = placements_of(1);
  const auto bad = [&](size_t read, const std::string& problem) {
    context.report(kPlacementRule, problem, context.reads[read].front().state);
  };
  const bool home = context.op.attrs.integer("home") != 0;
  for (size_t a = 0; a < axes_.size(); a++) {
    const AxisPlacement rows = result[a];
    if (rows.kind == PlacementKind::unknown || counts[a].kind == PlacementKind::unknown) continue;
    const bool split = rows.kind == PlacementKind::shard && rows.dim < 3;
    if (a == axis && split && rows.dim != (home ? 1 : 2))
      bad(0, fmt::format("exchanges over {} what is not split there so: {}", axes_[a], placement_words(rows)));
    if (a == axis ? counts[a].kind == PlacementKind::shard || counts[a].kind == PlacementKind::partial
                  : split && counts[a].kind == PlacementKind::invariant)
      bad(1, fmt::format("takes numbers of rows that are spread differently over {}: {}; {}", axes_[a],
                         placement_words(rows), placement_words(counts[a])));
    if (a == axis && split) result[a] = shard(home ? 2 : 1);
  }
  context.writes[0] = whole(*context.write_tensors[0], {id_of(result)});
}

void PlacementFlow::gather(OpContext& context, size_t axis) {
  const Tensor &from = *context.read_tensors[0], &to = *context.write_tensors[0];
  const Segments& reads = context.reads[0];
  if (reads.empty()) return;
  if (context.op.attrs.has("by_parameter")) return gather_parameters(context, axis);
  const TensorPlacement first = reads.front().state.placement;
  const bool one =
      std::all_of(reads.begin(), reads.end(), [&](const Segment& s) { return s.state.placement == first; });
  if (one && first.layout >= 0 && layouts_[first.layout].is_over(axis)) {
    Layout layout = layouts_[first.layout];
    if (layout.elements != from.count() || first.origin != from.byte_offset) {
      context.report(kPlacementRule,
                     fmt::format("gathers {} elements of a shard of {} over {}: the parts of the ranks do not join",
                                 from.count(), layout.elements, axes_[axis]),
                     reads.front().state);
      return;
    }
    if (layout.axes.back() != axis) {
      context.report(kPlacementRule,
                     fmt::format("gathers over {} a shard cut over {}: the last of these joins its parts first",
                                 axes_[axis], names_of(layout.axes)),
                     reads.front().state);
      return;
    }
    if (layout.axes.size() > 1) {  // the parts join to the shard of the other axes
      const AxisPlacements shards = on_axes(first.by_axis);
      layout.axes.pop_back();
      layout.elements *= sizes_[axis];
      const int by_axis = joined_pieces(layout, shards);
      context.writes[0] = whole(to, {by_axis, id_of(std::move(layout)), to.byte_offset});
      return;
    }
    context.writes[0] = whole(to, {id_of(all(kZero))});
    for (const Piece& piece : layout.pieces)
      context.writes[0].push_back(part(to, piece.begin, std::min(piece.end, to.count()), parameter(piece)));
    return;
  }
  std::vector<const TensorPlacement*> placements;
  for (const Segment& segment : reads) placements.push_back(&segment.state.placement);
  AxisPlacements result = on_axes(joined(placements));
  AxisPlacement& placement = result[axis];
  if (placement.kind == PlacementKind::invariant)
    context.report(kPlacementRule, fmt::format("gathers over {} what every rank has already", axes_[axis]),
                   reads.front().state);
  if (placement.kind == PlacementKind::partial)
    context.report(kPlacementRule, fmt::format("gathers over {} partial sums: a reduction is missing", axes_[axis]),
                   reads.front().state);
  // Runs of one block arrive in order. Padding after the last run is not part of the whole, so the placement is unknown
  // here.
  const bool padded = is_one_run(placement) && context.op.attrs.has("padded");
  const bool stacked = to.shape.size() == from.shape.size() + 1;  // [ranks, ...], input of join_pieces
  // Chunks of tokens arrive in the order of the ranks, in which gather_rows finds those of the sample.
  const Cut* order = nullptr;
  if (stacked && placement.kind == PlacementKind::shard && placement.cut != nullptr && placement.cut->chunks > 1)
    order = std::exchange(placement.cut, nullptr);
  if (placement.kind == PlacementKind::shard && placement.cut != nullptr && padded)
    placement = kUnknown;
  else if (placement.kind == PlacementKind::shard && placement.cut != nullptr)
    context.report(kPlacementRule,
                   fmt::format("puts the ranks' parts over {} side by side, and they are {}: another order than the "
                               "whole's",
                               axes_[axis], placement_words(placement)),
                   reads.front().state);
  const int8_t dim = placement.kind == PlacementKind::shard ? placement.dim : int8_t{-1};
  if (placement.kind != PlacementKind::unknown && placement.kind != PlacementKind::zero) placement = kInvariant;
  if (stacked) {
    for (AxisPlacement& other : result) move_shard(other, 1);
    result[axis].pieces = dim;
    result[axis].cut = order;
  }
  context.writes[0] = whole(to, {id_of(result)});
}

// Each rank's part of a shard becomes a shard that is cut over one axis more.
void PlacementFlow::scatter_shard(OpContext& context, size_t axis) {
  const Tensor &from = *context.read_tensors[0], &to = *context.write_tensors[0];
  const ValueState& state = context.reads[0].front().state;
  const bool averages_equal = repeats_[axis] && averages(context.op);
  TensorPlacement placement = each_piece(state.placement, [&](size_t a, AxisPlacement& one) {
    if (a != axis) return;
    const std::string problem = reduced(context.op, axes_[a], one, averages_equal);
    if (!problem.empty()) context.report(kPlacementRule, problem, state);
  });
  Layout layout = layouts_[placement.layout];
  const bool whole_shard = layout.elements == from.count() && placement.origin == from.byte_offset;
  if (layout.is_over(axis) || !whole_shard) return;  // reported above, or an unknown placement
  AxisPlacements shards = on_axes(placement.by_axis);
  shards[axis] = shard(kFlat);
  layout.axes.push_back(axis);
  layout.elements = to.count();
  const int by_axis = joined_pieces(layout, shards);
  context.writes[0] = whole(to, {by_axis, id_of(std::move(layout)), to.byte_offset});
}

void PlacementFlow::reduce_scatter(OpContext& context, size_t axis) {
  const Tensor &from = *context.read_tensors[0], &to = *context.write_tensors[0];
  std::vector<const TensorPlacement*> placements;
  std::vector<TensorPlacement> inner;
  std::vector<Piece> pieces;
  if (context.reads[0].size() == 1 && context.reads[0].front().state.placement.layout >= 0)
    return scatter_shard(context, axis);
  int8_t cut = -1;
  const Cut* order = nullptr;  // of the ranks' parts, other than theirs
  bool shards = false;
  for (const Segment& segment : context.reads[0]) {
    shards = shards || segment.state.placement.layout >= 0;
    AxisPlacements result = on_axes(segment.state.placement.by_axis);
    cut = std::max(cut, result[axis].pieces);
    order = result[axis].cut;
    const std::string problem = reduced(context.op, axes_[axis], result[axis], repeats_[axis] && averages(context.op));
    if (!problem.empty()) context.report(kPlacementRule, problem, segment.state);
    const int64_t begin = (segment.begin - from.byte_offset) / dtype_bytes(from.dtype),
                  end = (segment.end - from.byte_offset) / dtype_bytes(from.dtype);
    const int id = id_of(result);
    if (!pieces.empty() && pieces.back().by_axis == id) {
      pieces.back().end = end;
    } else {
      pieces.push_back({begin, end, id});
    }
    inner.push_back({id});
  }
  for (const TensorPlacement& placement : inner) placements.push_back(&placement);
  AxisPlacements result = on_axes(joined(placements));
  const bool known = result[axis].kind != PlacementKind::unknown && !shards;
  const bool flat = from.shape.size() == 1;
  if (from.shape.size() == to.shape.size() + 1)
    for (AxisPlacement& other : result) move_shard(other, -1), other.pieces = -1;  // [ranks, ...], output of cut_pieces
  if (known) result[axis] = flat ? shard(kFlat) : shard(std::max<int8_t>(cut, 0), order);
  TensorPlacement placement{id_of(result)};
  if (flat && known)
    placement = {placement.by_axis, id_of(Layout{{axis}, to.count(), std::move(pieces)}), to.byte_offset};
  context.writes[0] = whole(to, shards ? TensorPlacement{} : placement);
}

}  // namespace prun::verify
