// What communication does to placements.
//
// Surprising fact: a reduction is an error where there is nothing to add up, too: an average of equal values is right
// by luck, and a sum is not.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

constexpr const char* kPlacementRule = "placement";

bool averages(const Op& op) { return op.attrs.text("op", "sum") == "avg"; }
bool picks(const Op& op) { return op.attrs.text("op", "sum") == "max" || op.attrs.text("op", "sum") == "min"; }

// What a reduction over an axis makes of a mark; "" or what is wrong.
std::string reduced(const Op& op, const std::string& axis, Mark& mark) {
  const bool partial = mark.kind == Kind::partial;
  std::string problem;
  if (mark.kind == Kind::same) {
    problem = fmt::format(
        "reduces over {} what is the same on all its ranks: it was reduced before, or never was partial", axis);
  } else if (mark.kind == Kind::shard) {
    problem = fmt::format("reduces over {} what are different parts there, {}", axis, mark_text(mark));
  } else if (partial && (mark.combine == Combine::max) != picks(op)) {
    problem = fmt::format("reduces over {} by {}, and {}", axis, op.attrs.text("op", "sum"),
                          picks(op) ? "these are terms of a sum" : "these are candidates for a maximum");
  } else if (partial && mark.combine == Combine::sum && averages(op)) {
    problem = fmt::format("averages over {} what are terms of a sum", axis);
  } else if (partial && mark.combine == Combine::average && !averages(op)) {
    problem = fmt::format("adds over {} what each rank has scaled for an average", axis);
  }
  const int8_t pieces = mark.pieces;
  if (mark.kind != Kind::zero) mark = kSame;  // whatever it was
  mark.pieces = pieces;
  return problem;
}

}  // namespace

void Spreads::communicate(Moment& moment) {
  const Op& op = moment.op;
  const std::vector<size_t> axes = axes_of(op.axis);
  if (op.reads.empty() || op.writes.empty()) return;
  if (axes.empty()) return alone(moment);
  if (op.is(ops::all_reduce)) return reduce(moment, axes);
  if (op.is(ops::all_gather) && axes.size() == 1) return gather(moment, axes[0]);
  if (op.is(ops::all_to_all)) check_pieces(moment);
  if (op.is(ops::all_to_all) && axes.size() == 1) return exchange(moment, axes[0]);
  if (op.is(ops::reduce_scatter) && axes.size() == 1) return reduce_scatter(moment, axes[0]);
  std::vector<const Spread*> spreads;
  for (const Segment& segment : moment.reads[0]) spreads.push_back(&segment.held.spread);
  Marks result = marks(joined(spreads));
  for (const size_t a : axes) result[a] = op.is(ops::broadcast) ? kSame : kUnknown;
  moment.writes[0] = whole(*moment.write_tensors[0], {id_of(result)});
}

// A group of one copies, perhaps with a dim for the ranks before the others, or without it.
void Spreads::alone(Moment& moment) {
  elementwise(moment, find_elementwise_rule(ops::copy));
  const int more =
      static_cast<int>(moment.write_tensors[0]->shape.size()) - static_cast<int>(moment.read_tensors[0]->shape.size());
  if (more == 0) return;
  for (Segment& segment : moment.writes[0]) {
    Marks result = marks(segment.held.spread.marks);
    for (Mark& mark : result) {
      move_shard(mark, more);
      if (more < 0) mark.pieces = -1;
    }
    segment.held.spread.marks = id_of(result);
  }
}

void Spreads::reduce(Moment& moment, const std::vector<size_t>& axes) {
  const Tensor &from = *moment.read_tensors[0], &to = *moment.write_tensors[0];
  if (from.count() != to.count()) return;
  moment.writes[0].clear();
  for (const Segment& segment : moment.reads[0]) {
    Spread spread = segment.held.spread;
    Marks result = marks(spread.marks);
    bool others_differ = false;  // ranks of other programs bring what we do not see here
    for (const size_t a : axes) {
      others_differ = others_differ || (stages_[a] && !moment.met && result[a].kind == Kind::zero);
      const std::string problem = reduced(moment.op, axes_[a], result[a]);
      if (!problem.empty()) moment.report(kPlacementRule, problem, segment.held);
    }
    spread.marks = others_differ ? 0 : id_of(result);
    if (spread.layout >= 0) {
      Layout layout = layouts_[spread.layout];
      for (Piece& piece : layout.pieces) {
        Marks inner = marks(piece.marks);
        for (const size_t a : axes) reduced(moment.op, axes_[a], inner[a]);
        piece.marks = id_of(inner);
      }
      spread.layout = id_of(std::move(layout));
      spread.origin += to.byte_offset - from.byte_offset;
    }
    const int64_t shift = to.byte_offset - from.byte_offset;
    Held held;
    held.spread = spread;
    moment.writes[0].push_back({segment.begin + shift, segment.end + shift, held});
  }
}

// What one rank sends to each, or has from each, is a piece for every rank of the group.
void Spreads::check_pieces(const Moment& moment) {
  const Shape &from = moment.read_tensors[0]->shape, &to = moment.write_tensors[0]->shape;
  if (from.size() == to.size()) return;
  const int64_t pieces = from.size() < to.size() ? to.front() : from.front();
  const int ranks = moment.body.program->mesh.size(moment.op.axis);
  if (pieces != ranks && !moment.reads[0].empty())
    moment.report(kPlacementRule,
                  fmt::format("exchanges {} pieces in a group of {} along {}", pieces, ranks, moment.op.axis),
                  moment.reads[0].front().held);
}

// Each rank sends a run of the first dim to each: the first dim is split then, and the one that was split is whole, in
// pieces before the others until join_pieces; and back.
void Spreads::exchange(Moment& moment, size_t axis) {
  const Tensor &from = *moment.read_tensors[0], &to = *moment.write_tensors[0];
  std::vector<const Spread*> spreads;
  for (const Segment& segment : moment.reads[0]) spreads.push_back(&segment.held.spread);
  Marks result = marks(joined(spreads));
  const Mark before = result[axis];
  const int more = std::ssize(to.shape) - static_cast<int>(from.shape.size());
  for (Mark& mark : result) {
    move_shard(mark, more);
    if (more < 0) mark.pieces = -1;
  }
  Mark& mark = result[axis];
  mark = kUnknown;
  if (before.kind == Kind::shard && before.pieces < 0 && more == 1) {
    mark = shard(1);
    mark.pieces = before.dim;
  } else if (before.kind == Kind::shard && before.pieces >= 0 && before.dim == 1 && more == -1) {
    mark = shard(before.pieces);
  } else if (more != 0 && before.kind != Kind::unknown && before.kind != Kind::zero && before.kind != Kind::varying) {
    moment.report(kPlacementRule,
                  fmt::format("exchanges over {} what is not split there so: {}", axes_[axis], mark_text(before)),
                  moment.reads[0].front().held);
  }
  moment.writes[0] = whole(to, {id_of(result)});
}

void Spreads::gather(Moment& moment, size_t axis) {
  const Tensor &from = *moment.read_tensors[0], &to = *moment.write_tensors[0];
  const Segments& reads = moment.reads[0];
  if (reads.empty()) return;
  const Spread first = reads.front().held.spread;
  const bool one = std::all_of(reads.begin(), reads.end(), [&](const Segment& s) { return s.held.spread == first; });
  if (one && first.layout >= 0 && layouts_[first.layout].axis == static_cast<int>(axis)) {
    const Layout layout = layouts_[first.layout];
    if (layout.elements != from.count() || first.origin != from.byte_offset) {
      moment.report(kPlacementRule,
                    fmt::format("gathers {} elements of a shard of {} over {}: the parts of the ranks do not join",
                                from.count(), layout.elements, axes_[axis]),
                    reads.front().held);
      return;
    }
    moment.writes[0] = whole(to, {id_of(all(kZero))});
    for (const Piece& piece : layout.pieces)
      moment.writes[0].push_back(part(to, piece.begin, std::min(piece.end, to.count()), parameter(piece)));
    return;
  }
  std::vector<const Spread*> spreads;
  for (const Segment& segment : reads) spreads.push_back(&segment.held.spread);
  Marks result = marks(joined(spreads));
  Mark& mark = result[axis];
  if (mark.kind == Kind::same)
    moment.report(kPlacementRule, fmt::format("gathers over {} what every rank has already", axes_[axis]),
                  reads.front().held);
  if (mark.kind == Kind::partial)
    moment.report(kPlacementRule, fmt::format("gathers over {} partial sums: a reduction is missing", axes_[axis]),
                  reads.front().held);
  const bool stacked = to.shape.size() == from.shape.size() + 1;  // [ranks, ...], for join_pieces
  const int8_t dim = mark.kind == Kind::shard ? mark.dim : int8_t{-1};
  if (mark.kind != Kind::unknown && mark.kind != Kind::zero) mark = kSame;
  if (stacked) {
    for (Mark& other : result) move_shard(other, 1);
    result[axis].pieces = dim;
  }
  moment.writes[0] = whole(to, {id_of(result)});
}

void Spreads::reduce_scatter(Moment& moment, size_t axis) {
  const Tensor &from = *moment.read_tensors[0], &to = *moment.write_tensors[0];
  std::vector<const Spread*> spreads;
  std::vector<Spread> inner;
  std::vector<Piece> pieces;
  int8_t cut = -1;
  bool shards = false;
  for (const Segment& segment : moment.reads[0]) {
    shards = shards || segment.held.spread.layout >= 0;
    Marks result = marks(segment.held.spread.marks);
    cut = std::max(cut, result[axis].pieces);
    const std::string problem = reduced(moment.op, axes_[axis], result[axis]);
    if (!problem.empty()) moment.report(kPlacementRule, problem, segment.held);
    const int64_t begin = (segment.begin - from.byte_offset) / dtype_bytes(from.dtype),
                  end = (segment.end - from.byte_offset) / dtype_bytes(from.dtype);
    const int id = id_of(result);
    if (!pieces.empty() && pieces.back().marks == id) {
      pieces.back().end = end;
    } else {
      pieces.push_back({begin, end, id});
    }
    inner.push_back({id});
  }
  for (const Spread& spread : inner) spreads.push_back(&spread);
  Marks result = marks(joined(spreads));
  const bool known = result[axis].kind != Kind::unknown && !shards;
  const bool flat = from.shape.size() == 1;
  if (from.shape.size() == to.shape.size() + 1)
    for (Mark& other : result) move_shard(other, -1), other.pieces = -1;  // [ranks, ...], from cut_pieces
  if (known) result[axis] = flat ? shard(kFlat) : shard(std::max<int8_t>(cut, 0));
  Spread spread{id_of(result)};
  if (flat && known)
    spread = {spread.marks, id_of(Layout{static_cast<int>(axis), to.count(), std::move(pieces)}), to.byte_offset};
  moment.writes[0] = whole(to, shards ? Spread{} : spread);
}

}  // namespace prun::verify
