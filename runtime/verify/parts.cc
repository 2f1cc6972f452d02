// Ops that write a part of a tensor (compile/write_parts.cc): where a part is, its placement in the whole tensor, and
// that all parts are written before another op reads the tensor.
#include "verify/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "ir/ops.h"
#include "ir/pointwise.h"
#include "verify/placement_rules.h"

namespace prun::verify {
namespace {

const WrittenParts* interned(WrittenParts written) {
  static std::mutex mutex;
  static std::set<WrittenParts> all;
  const std::lock_guard<std::mutex> lock(mutex);
  return &*all.insert(std::move(written)).first;
}

}  // namespace

bool continues(const Op& op) { return writes_part(op) && op.attrs.integer("continues") != 0; }

bool writes_part(const Op& op) { return (op.is(ops::matmul) || op.is(ops::pointwise)) && op.attrs.has("whole"); }

size_t own_reads(const Op& op) { return op.reads.size() - (continues(op) ? 1 : 0); }

std::optional<WrittenPart> written_part(const OpContext& context) {
  const Shape& whole = context.write_tensors[0]->shape;
  const auto views = sdk::parse_operand_views(context.op.attrs.text("views"));
  const sdk::OperandView* const view =
      views ? sdk::view_of_operand(*views, static_cast<int>(own_reads(context.op))) : nullptr;
  if (view == nullptr || view->dims.size() != whole.size()) return std::nullopt;
  std::optional<WrittenPart> part;
  for (size_t d = 0; d < whole.size(); ++d) {
    const sdk::ViewedDim& dim = view->dims[d];
    if (dim.to < 0 || (dim.size != 0 && part)) return std::nullopt;
    if (dim.size == 0) continue;
    if (dim.start < 0 || dim.start + dim.size > whole[d]) return std::nullopt;
    part = WrittenPart{static_cast<int>(d), dim.start, dim.start + dim.size};
  }
  return part;
}

void follow_parts(OpContext& context) {
  for (size_t r = 0; r < context.reads.size(); ++r) {
    if (continues(context.op) && r == own_reads(context.op)) continue;
    for (const Segment& segment : context.reads[r])
      if (segment.state.written != nullptr)
        return context.report("part of a tensor", "reads a tensor before all its parts are written", segment.state);
  }
  if (!writes_part(context.op)) return;
  const std::optional<WrittenPart> part = written_part(context);
  const Segments none;
  const Segments& before = continues(context.op) ? context.reads.back() : none;
  const WrittenParts* const known = before.size() == 1 ? before.front().state.written : nullptr;
  const ValueState unknown;
  const ValueState& state = before.empty() ? unknown : before.front().state;
  if (!part) return context.report("part of a tensor", "writes no part of a dim", state);
  if (continues(context.op) && (known == nullptr || known->dim != part->dim))
    return context.report("part of a tensor", "writes into a tensor whose other parts are not written", state);
  WrittenParts now{part->dim, known == nullptr ? WrittenParts::Ranges() : known->ranges};
  now.ranges.emplace_back(part->begin, part->end);
  std::sort(now.ranges.begin(), now.ranges.end());
  WrittenParts::Ranges joined;
  for (const auto& [begin, end] : now.ranges) {
    if (!joined.empty() && begin < joined.back().second)
      return context.report("part of a tensor", "writes a part that is written already", state);
    if (!joined.empty() && begin == joined.back().second)
      joined.back().second = end;
    else
      joined.emplace_back(begin, end);
  }
  now.ranges = std::move(joined);
  const int64_t all = context.write_tensors[0]->shape[static_cast<size_t>(part->dim)];
  if (now.ranges.size() == 1 && now.ranges.front() == std::pair<int64_t, int64_t>{0, all}) return;
  for (Segment& segment : context.writes[0]) segment.state.written = interned(now);
}

namespace rules {

// The blocks of a sharded dim of which a part is unwritten are those of the parts, with the rest between them.
AxisOutcome in_whole(const AxisView& axis, const AxisPlacements& reads, AxisOutcome outcome) {
  const OpContext& context = axis.context;
  if (!writes_part(context.op) || !outcome.problem.empty()) return outcome;
  const std::optional<WrittenPart> part = written_part(context);
  if (!part) return bad(0, "writes no part of a dim");
  const AxisPlacement mine = outcome.writes[0];
  const bool more = continues(context.op);
  if (!is_shard(mine) || mine.dim != part->dim) {
    if (!more) return outcome;
    const Agreement both = agreement({mine, reads.back()}, 0, 2);
    if (!both.agree || (is_shard(both.placement) && both.placement.dim == part->dim))
      return do_not_match(axis, reads, reads.size() - 1);
    return gives({both.placement});
  }
  const auto plain = [](const AxisPlacement& one) {
    return one.cut == nullptr || (one.cut->chunks == 1 && one.cut->grain == 1);
  };
  const int64_t ranks = axis.ranks, begin = part->begin * ranks, end = part->end * ranks;
  std::vector<int64_t> own = {end - begin}, before = {context.write_tensors[0]->shape[part->dim] * ranks}, blocks;
  if (mine.cut != nullptr) own = mine.cut->blocks;
  if (more) {
    if (!is_shard(reads.back()) || reads.back().dim != part->dim || !plain(reads.back()))
      return do_not_match(axis, reads, reads.size() - 1);
    if (reads.back().cut != nullptr) before = reads.back().cut->blocks;
  }
  int64_t at = 0, sum = 0;
  for (const int64_t block : own) sum += block;
  bool found = false;
  for (const int64_t block : before) {
    if (at <= begin && end <= at + block && sum == end - begin && plain(mine) && !found) {
      found = true;
      if (begin > at) blocks.push_back(begin - at);
      blocks.insert(blocks.end(), own.begin(), own.end());
      if (at + block > end) blocks.push_back(at + block - end);
    } else {
      blocks.push_back(block);
    }
    at += block;
  }
  if (!found) return do_not_match(axis, reads, 0);
  return gives({shard(part->dim, cut_into(std::move(blocks), axis.ranks))});
}

}  // namespace rules
}  // namespace prun::verify
