// Views. A reshape keeps the order of the elements, so that a rank's part of dim d of x is a part of dim e of y if the
// dims before both have as many elements.
//
// Surprising fact: local shapes do not determine e where a rank's part has size 1; attributes `to` and `from` state it
// for the axis that the compiler has split last.
#include <fmt/format.h>

#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {
namespace {

const Shape& read_shape(const AxisView& axis, size_t read) { return axis.context.read_tensors[read]->shape; }
const Shape& write_shape(const AxisView& axis) { return axis.context.write_tensors[0]->shape; }

Shape numbers_of(const AxisView& axis, const char* name) {
  Shape list;
  for (const double one : axis.context.op.attrs.numbers(name)) list.push_back(static_cast<int64_t>(one));
  return list;
}

int64_t count_before(const Shape& shape, int dim) {
  return element_count({shape.begin(), shape.begin() + std::min<int64_t>(dim, std::ssize(shape))});
}

// Returns the cut of a dim of `after` elements that is the first part of a dim of `before` elements, split into runs of
// equal length, or that merges the dim with one after it; null if a rank's part of a block is no number of runs.
const Cut* cut_of_runs(const Cut& cut, int ranks, int64_t before, int64_t after) {
  if (cut.chunks != 1 || cut.grain != 1 || before == 0 || after == 0) return nullptr;
  std::vector<int64_t> blocks = cut.blocks;
  if (after > before && after % before == 0) {
    for (int64_t& block : blocks) block *= after / before;
    return cut_into(std::move(blocks), ranks);
  }
  if (before % after != 0) return nullptr;
  for (int64_t& block : blocks) {
    if (block % (ranks * (before / after)) != 0) return nullptr;
    block /= before / after;
  }
  return cut_into(std::move(blocks), ranks);
}

AxisOutcome mixes(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  return bad(read,
             fmt::format("mixes the parts of {}, of which each rank has {}", axis.axis, placement_words(reads[read])));
}

}  // namespace

AxisOutcome reshape(const AxisView& axis, const AxisPlacements& reads) {
  if (!is_shard(reads[0])) return gives({reads[0]});
  const Shape &x = read_shape(axis, 0), &y = write_shape(axis);
  const int dim = static_cast<uint8_t>(reads[0].dim);
  if (dim >= std::ssize(x)) return mixes(axis, reads, 0);
  const int64_t before = count_before(x, dim);
  AxisPlacement placement = reads[0];
  const auto moved = [&](int to) {
    placement.dim = static_cast<int8_t>(to);
    const bool same = x[dim] == y[to];
    if (!same && placement.cut != nullptr && !is_one_run(placement)) {
      const Cut* const cut = cut_of_runs(*placement.cut, axis.ranks, x[dim], y[to]);
      if (cut == nullptr) return mixes(axis, reads, 0);
      placement.cut = cut;
    } else if (!same) {
      placement.cut = nullptr;
    }
    return gives({placement});
  };
  if (axis("axis") && axis.context.op.attrs.integer("from") == dim) {
    const auto to = static_cast<int>(axis.context.op.attrs.integer("to"));
    return to < std::ssize(y) && count_before(y, to) == before ? moved(to) : mixes(axis, reads, 0);
  }
  // Several dims qualify if all but the last have size 1: prefers the one with the same part, then the first.
  int found = -1;
  for (int to = 0; to < std::ssize(y); to++) {
    if (count_before(y, to) != before) continue;
    if (y[to] == x[dim]) return moved(to);
    if (found < 0) found = to;
  }
  return found < 0 ? mixes(axis, reads, 0) : moved(found);
}

AxisOutcome permute(const AxisView& axis, const AxisPlacements& reads) {
  AxisPlacement placement = reads[0];
  if (!is_shard(placement)) return gives({placement});
  const Shape order = numbers_of(axis, "order");
  for (size_t to = 0; to < order.size(); to++)
    if (order[to] == reads[0].dim) {
      placement.dim = static_cast<int8_t>(to);
      return gives({placement});
    }
  return mixes(axis, reads, 0);
}

AxisPlacement sliced_blocks(const AxisView& axis, const AxisPlacements& reads, size_t read, int64_t start,
                            int64_t size) {
  std::vector<int64_t> kept;
  int64_t at = 0;
  bool begins = false, ends = false;
  const Cut* const cut = reads[read].cut;
  if (cut != nullptr && cut->chunks != 1) return {};
  const int64_t all = read_shape(axis, read).at(reads[read].dim) * axis.ranks;
  for (const int64_t block : cut != nullptr ? cut->blocks : std::vector<int64_t>{all}) {
    if (block % axis.ranks != 0) return {};
    begins = begins || at == start;
    if (begins && !ends) kept.push_back(block);
    at += block / axis.ranks;
    ends = ends || at == start + size;
  }
  return begins && ends ? shard(reads[read].dim, cut_into(std::move(kept), axis.ranks)) : AxisPlacement{};
}

// slice and pad change one dim. Padding with a number would be added up once a rank.
AxisOutcome one_dim(const AxisView& axis, const AxisPlacements& reads) {
  const Attrs& attrs = axis.context.op.attrs;
  if (is_partial(reads[0]) && attrs.number("value") != 0) return needs_whole(axis, 0);
  if (is_shard(reads[0]) && reads[0].dim == attrs.integer("dim")) {
    if (!axis.context.op.is(ops::slice)) return mixes(axis, reads, 0);
    const AxisPlacement kept = sliced_blocks(axis, reads, 0, attrs.integer("start"), attrs.integer("size"));
    return is_shard(kept) ? gives({kept}) : mixes(axis, reads, 0);
  }
  if (is(reads[0], Kind::zero) && attrs.number("value") != 0) return gives({kInvariant});
  return gives({reads[0]});
}

// Columns that are side by side on each rank are blocks, each split by itself.
AxisOutcome concat(const AxisView& axis, const AxisPlacements& reads) {
  const bool columns = axis.context.op.attrs.integer("dim") == last_dim(axis, 0);
  std::vector<int64_t> blocks;
  for (size_t r = 0; columns && r < reads.size() && by_columns(axis, reads, r); ++r) {
    for (const int64_t block : column_blocks(axis, reads, r)) blocks.push_back(block);
    if (r + 1 == reads.size()) return gives({shard(reads[0].dim, cut_into(std::move(blocks), axis.ranks))});
  }
  const Agreement result = agreement(reads, 0, reads.size());
  if (!result.agree) return do_not_match(axis, reads, result.read);
  if (is_shard(result.placement) && result.placement.dim == axis.context.op.attrs.integer("dim"))
    return mixes(axis, reads, 0);
  return gives({result.placement});
}

// Attribute rows_axis: the samples that the first dim repeats are those of the rank.
AxisOutcome expand(const AxisView& axis, const AxisPlacements& reads) {
  const Shape &x = read_shape(axis, 0), &y = write_shape(axis);
  if (axis.names("rows_axis")) {
    if (!whole(reads[0]) || x.empty() || x[0] != 1) return mixes(axis, reads, 0);
    return gives({shard(0)});
  }
  if (is_shard(reads[0]) && x.at(reads[0].dim) != y.at(reads[0].dim)) return mixes(axis, reads, 0);
  return gives({reads[0]});
}

AxisOutcome expand_grad(const AxisView& axis, const AxisPlacements& reads) {
  const Shape &dy = read_shape(axis, 0), &dx = write_shape(axis);
  if (axis.names("rows_axis") && reads[0] == shard(0)) return gives({partial(axis.combine)});
  if (is_shard(reads[0]) && dx.at(reads[0].dim) != dy.at(reads[0].dim)) return gives({partial(axis.combine)});
  return gives({reads[0]});
}

// Operands: x, ids.
AxisOutcome gather_rows(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &x = reads[0], &ids = reads[1];
  const int rows = std::ssize(read_shape(axis, 1)) - 1;
  if (axis.names("tokens_axis") || in_order_of_ranks(x)) {
    if (axis.names("tokens_axis") && in_order_of_ranks(x) && whole(ids)) return gives({kInvariant});
    return do_not_match(axis, reads, 0);
  }
  if (is_partial(ids)) return needs_whole(axis, 1);
  if (is_shard(ids)) {
    if (ids.dim == rows ? whole(x) : x == ids) return gives({ids});
    return do_not_match(axis, reads, 1);
  }
  if (!is_shard(x)) return gives({whole(ids) ? x : kUnknown});
  return x.dim > rows ? gives({x}) : do_not_match(axis, reads, 0);
}

// Operands: ids, dy.
AxisOutcome gather_rows_grad(const AxisView& axis, const AxisPlacements& reads) {
  const AxisPlacement &ids = reads[0], &dy = reads[1];
  const int rows = std::ssize(read_shape(axis, 0)) - 1;
  if (axis.names("tokens_axis")) {  // each rank's queries contribute to the keys of all ranks
    if (!is_partial(dy) || !whole(ids)) return do_not_match(axis, reads, 1);
    AxisPlacement terms = partial(Combine::sum);
    terms.cut = cut_into({write_shape(axis).at(rows)}, axis.ranks, 2);
    return gives({terms});
  }
  if (is_shard(ids)) {
    if (dy != ids) return do_not_match(axis, reads, 1);
    return gives({ids.dim == rows ? partial(axis.combine) : ids});
  }
  if (!is_shard(dy)) return gives({whole(ids) ? dy : kUnknown});
  return dy.dim > rows ? gives({dy}) : do_not_match(axis, reads, 1);
}

}  // namespace prun::verify::rules
