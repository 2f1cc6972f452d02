// Propagates placements through an op. Sources are handled here, communication in placement_comm.cc, all other ops by
// the table of placement_rules.cc.
#include "verify/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "ir/ops.h"
#include "verify/placement_rules.h"
#include "verify/values.h"

namespace prun::verify {

Segments whole(const Tensor& tensor, const TensorPlacement& placement) {
  ValueState state;
  state.placement = placement;
  return {{tensor.byte_offset, tensor.byte_offset + tensor.bytes(), state}};
}

void place_whole(OpContext& context, size_t write, const TensorPlacement& placement) {
  const Tensor& tensor = *context.write_tensors[write];
  Segments& segments = context.writes[write];
  segments.resize(1);
  segments.front() = {tensor.byte_offset, tensor.byte_offset + tensor.bytes(), {}};
  segments.front().state.placement = placement;
}

Segment part(const Tensor& tensor, int64_t begin, int64_t end, const TensorPlacement& placement) {
  ValueState state;
  state.placement = placement;
  const int64_t size = dtype_bytes(tensor.dtype);
  return {tensor.byte_offset + begin * size, tensor.byte_offset + end * size, state};
}

TensorPlacement parameter(const Piece& piece) { return {piece.by_axis, -1, 0, piece.begin, piece.end - piece.begin}; }

bool AxisView::operator()(const char* attribute) const { return context.op.attrs.text(attribute) == axis; }

bool AxisView::names(const char* attribute) const {
  const std::vector<std::string> axes = split(context.op.attrs.text(attribute), ',');
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

PlacementFlow::PlacementFlow(const JobView& view) {
  const Job& job = *view.job;
  const Mesh& mesh = job.classes.front().mesh;
  std::set<std::string> data, repeats;
  bool pads = false;
  for (const std::vector<BodyView>* bodies : {&view.bodies, &view.steps})
    for (const BodyView& body : *bodies)
      for (const OpRef ref : body.order.sequence()) {
        const Op& op = body.op(ref);
        pads = pads || (makes_state(op) && op.attrs.has("split_grain"));
        if (!op.is(ops::next_batch)) continue;
        for (const std::string& name : split(op.attrs.text("axis"), ',')) data.insert(name);
        data.insert(op.attrs.text("tokens_axis"));
        if (op.attrs.has("whole")) repeats.insert(op.attrs.text("tokens_axis"));
      }
  for (const Axis& axis : mesh.axes()) {
    if (axis.size < 2) continue;
    axes_.push_back(axis.name);
    sizes_.push_back(axis.size);
    const bool averaged = data.count(axis.name) != 0 || data.count(kWorld) != 0;
    combine_.push_back(averaged ? Combine::average : Combine::sum);
    bool stages = false;
    for (int rank = 0; rank < mesh.ranks() && !stages && job.classes.size() > 1; rank++)
      for (const int other : mesh.group(axis.name, rank))
        stages = stages || job.class_of_rank[rank] != job.class_of_rank[other];
    stages_.push_back(stages);
    const std::vector<std::string> drift = drift_axes(job.classes.front());
    drifts_.push_back(std::find(drift.begin(), drift.end(), axis.name) != drift.end());
    repeats_.push_back(repeats.count(axis.name) != 0);
  }
  if (pads) {
    axes_.emplace_back(kPaddingAxis);
    sizes_.push_back(1);
    combine_.push_back(Combine::sum);
    stages_.push_back(false);
    drifts_.push_back(false);
    repeats_.push_back(false);
  }
  id_of(all(kUnknown));
}

int PlacementFlow::id_of(const AxisPlacements& axes) {
  const auto [known, fresh] = ids_.try_emplace(axes, by_id_.size());
  if (fresh) by_id_.push_back(axes);
  return known->second;
}

int PlacementFlow::id_of(Layout layout) {
  const auto [known, fresh] = layout_ids_.try_emplace(layout, layouts_.size());
  if (fresh) layouts_.push_back(std::move(layout));
  return known->second;
}

std::vector<size_t> PlacementFlow::axes_of(const std::string& name) const {
  std::vector<size_t> found;
  for (size_t a = 0; a < axes_.size(); a++)
    if (axes_[a] == name || (name == kWorld && axes_[a] != kPaddingAxis)) found.push_back(a);
  return found;
}

std::vector<size_t> PlacementFlow::axes_in(const std::string& names) const {
  std::vector<size_t> found;
  for (const std::string& name : split(names, ','))
    for (const size_t a : axes_of(name)) found.push_back(a);
  return found;
}

std::string PlacementFlow::names_of(const std::vector<size_t>& axes) const {
  std::string names;
  for (const size_t a : axes) names += (names.empty() ? "" : ",") + axes_[a];
  return names;
}

// Merges the placements of several pieces on each axis; zeros are compatible with all placements.
int PlacementFlow::joined(const std::vector<const TensorPlacement*>& placements) {
  if (placements.empty()) return 0;
  AxisPlacements result = on_axes(placements[0]->by_axis);
  for (const TensorPlacement* placement : placements) {
    const AxisPlacements& other = on_axes(placement->by_axis);
    for (size_t a = 0; a < axes_.size(); a++) {
      if (result[a] == other[a] || other[a].kind == PlacementKind::zero) continue;
      // A value that is partial in some pieces is not whole.
      const bool partly = result[a].kind == PlacementKind::partial && other[a].kind == PlacementKind::invariant;
      const bool now = result[a].kind == PlacementKind::invariant && other[a].kind == PlacementKind::partial;
      if (partly) continue;
      result[a] = result[a].kind == PlacementKind::zero || now ? other[a] : kUnknown;
    }
  }
  return id_of(result);
}

// A value that is partial on some of the ranks is partial after the reduction.
TensorPlacement PlacementFlow::together(const std::vector<const TensorPlacement*>& placements) {
  AxisPlacements result = on_axes(joined(placements));
  for (const TensorPlacement* placement : placements)
    for (size_t a = 0; a < axes_.size(); a++)
      if (on_axes(placement->by_axis)[a].kind == PlacementKind::partial) result[a] = on_axes(placement->by_axis)[a];
  return {id_of(result)};
}

// Pipeline stages hold different values; a ring passes on the shards of one value.
TensorPlacement PlacementFlow::arrived(const TensorPlacement& sent, const std::string& axis, int offset) {
  const std::vector<size_t> over = axes_of(axis);
  TensorPlacement result = each_piece(sent, [&](size_t a, AxisPlacement& placement) {
    if (std::find(over.begin(), over.end(), a) == over.end()) return;
    if (placement.kind == PlacementKind::shard && !stages_[a]) {
      placement.turn = static_cast<int16_t>((placement.turn + offset) % sizes_[a]);
    } else if (placement.kind != PlacementKind::invariant || stages_[a]) {
      placement = kVarying;
    }
  });
  result.piece_begin = result.piece_count = 0;
  return result;
}

std::string PlacementFlow::not_whole(const TensorPlacement& placement) const {
  for (size_t a = 0; a < axes_.size(); a++) {
    const AxisPlacement& here = on_axes(placement.by_axis)[a];
    const bool differs =
        here.kind == PlacementKind::partial || here.kind == PlacementKind::shard || here.kind == PlacementKind::varying;
    if (differs && !stages_[a]) return fmt::format("as {} over {}", placement_words(here), axes_[a]);
  }
  return "";
}

std::string PlacementFlow::difference(const TensorPlacement& before, const TensorPlacement& now) const {
  std::string changed = difference(on_axes(before.by_axis), on_axes(now.by_axis));
  if (before.layout == now.layout || before.layout < 0 || now.layout < 0) return changed;
  const Layout &was = layouts_[before.layout], &is = layouts_[now.layout];
  for (const int64_t begin : borders_of({&was, &is}))
    if (changed.empty()) changed = difference(on_axes_at(was, begin), on_axes_at(is, begin));
  return changed;
}

std::string PlacementFlow::difference(const AxisPlacements& before, const AxisPlacements& now) const {
  for (size_t a = 0; a < axes_.size(); a++) {
    const AxisPlacement &x = before[a], &y = now[a];
    const bool free = x.kind == PlacementKind::unknown || y.kind == PlacementKind::unknown ||
                      x.kind == PlacementKind::zero || y.kind == PlacementKind::zero ||
                      x.kind == PlacementKind::varying || (drifts_[a] && y.differs == Differs::drift);
    if (y.kind == PlacementKind::partial || (!free && (x.kind != y.kind || x.dim != y.dim)))
      return fmt::format("begin a step as {} and end it as {} over {}", placement_words(x), placement_words(y),
                         axes_[a]);
  }
  return "";
}

AxisOutcome PlacementFlow::on_axis(const OpContext& context, AxisRule rule, size_t axis, const AxisPlacements& reads) {
  const auto any = [&](PlacementKind kind) {
    return std::any_of(reads.begin(), reads.end(),
                       [kind](const AxisPlacement& placement) { return placement.kind == kind; });
  };
  const auto everywhere = [&](AxisPlacement placement) {
    return AxisOutcome{AxisPlacements(context.writes.size(), placement), "", 0};
  };
  if (context.op.is(ops::add) && std::find(reads.begin(), reads.end(), kOpenSquares) != reads.end()) {
    const auto known = std::find_if(reads.begin(), reads.end(), [](const auto& one) { return one != kOpenSquares; });
    return everywhere(known == reads.end() ? kOpenSquares : *known);
  }
  // Norms and updates accept operands of unknown placement; their known operands must be right.
  const bool lenient = context.op.is(ops::norm2) || is_optimizer(context.op);
  // A check's output belongs to this rank, even if all ranks should have the same.
  if ((any(PlacementKind::unknown) && !lenient) || is_check(context.op)) return everywhere(kUnknown);
  const AxisView view{context, axes_[axis], sizes_[axis], combine_[axis], drifts_[axis]};
  const bool plain = !any(PlacementKind::partial) && !any(PlacementKind::shard) && !any(PlacementKind::varying) &&
                     !any(PlacementKind::unknown);
  const bool pads = view.pads() && context.op.attrs.has("valid");
  const bool splits = pads || view("axis") || view.names("tokens_axis") || view("split_axis") || view("split_parts") ||
                      view.names("rows_axis");
  const bool weighted = context.op.attrs.has("weights") || context.op.attrs.has("piece_weights");
  const bool cut =
      context.op.is(ops::cut_pieces) ||
      std::any_of(reads.begin(), reads.end(), [](const AxisPlacement& placement) { return placement.pieces >= 0; });
  // A penalty or a loss of global sums is the same on ranks with different samples, and averaged like the others.
  const bool penalty = context.op.is(ops::squares) || context.op.is(ops::squares_grad) || context.op.attrs.has("gain");
  const auto other_order = std::find_if(reads.begin(), reads.end(), in_order_of_ranks);
  if (other_order != reads.end() && !context.op.is(ops::join_pieces) && !context.op.is(ops::gather_rows))
    return rules::do_not_match(view, reads, other_order - reads.begin());
  if (plain && !splits && !weighted && !cut && !penalty && !any(PlacementKind::zero)) return everywhere(kInvariant);
  // A cast of drifting weights drifts, too.
  if (any(PlacementKind::varying) && !lenient) return everywhere(context.op.is(ops::cast) ? reads[0] : kVarying);
  if (view.pads() && context.op.is(ops::norm2)) return everywhere(kInvariant);  // padding is zero
  AxisOutcome outcome = rule(view, reads);
  // Otherwise no op that depends on the result would be checked.
  if (outcome.problem.empty() && !lenient &&
      std::find(outcome.writes.begin(), outcome.writes.end(), kUnknown) != outcome.writes.end())
    outcome = rules::do_not_match(view, reads, 0);
  for (AxisPlacement& write : outcome.writes)
    if (view.pads() && write.kind == PlacementKind::partial) write = kInvariant;  // a reduction over one rank
  outcome.writes.resize(context.writes.size(), outcome.writes.empty() ? kUnknown : outcome.writes.back());
  return outcome;
}

// Merges the placements of an operand's segments.
int PlacementFlow::together_in(const Segments& segments) {
  if (segments.empty()) return 0;
  const int first = segments.front().state.placement.by_axis;
  const auto same = [first](const Segment& segment) { return segment.state.placement.by_axis == first; };
  if (std::all_of(segments.begin(), segments.end(), same)) return first;
  std::vector<const TensorPlacement*> placements;
  for (const Segment& segment : segments) placements.push_back(&segment.state.placement);
  return joined(placements);
}

void PlacementFlow::by_tensor(OpContext& context, AxisRule rule) {
  // A norm checks each segment; other ops require one placement per operand.
  const bool one_by_one = context.op.is(ops::norm2);
  key_ = {context.body.kind_of(context.ref)};
  for (size_t r = 0; r < context.reads.size() && !one_by_one; r++) key_.push_back(together_in(context.reads[r]));
  if (const auto known = made_.find(key_); known != made_.end()) {
    for (size_t w = 0; w < context.writes.size(); w++) place_whole(context, w, known->second[w]);
    return;
  }
  std::vector<AxisPlacements> operands;
  std::vector<const ValueState*> state;
  static const ValueState kNothing;
  for (size_t r = 0; r < context.reads.size(); r++) {
    const Segments& segments = context.reads[r];
    std::vector<const TensorPlacement*> placements;
    for (const Segment& segment : segments) placements.push_back(&segment.state.placement);
    for (size_t s = 0; s < (one_by_one ? segments.size() : 1); s++) {
      operands.push_back(on_axes(one_by_one ? placements[s]->by_axis : joined(placements)));
      state.push_back(segments.empty() ? &kNothing : &segments[s].state);
      if (!one_by_one || placements[s]->layout < 0) continue;
      const Layout& layout = layouts_[placements[s]->layout];
      const AxisPlacements on_its_axes = std::move(operands.back());
      operands.pop_back(), state.pop_back();
      for (const Piece& piece : layout.pieces) {
        operands.push_back(on_axes(piece.by_axis));
        take_axes(layout, on_its_axes, operands.back());
        state.push_back(&segments[s].state);
      }
    }
  }
  bool right = !one_by_one;
  std::vector<AxisPlacements> results(context.writes.size(), all(kUnknown));
  for (size_t a = 0; a < axes_.size(); a++) {
    AxisPlacements reads;
    for (const AxisPlacements& operand : operands) reads.push_back(operand[a]);
    const AxisOutcome outcome = on_axis(context, rule, a, reads);
    if (!outcome.problem.empty()) context.report("placement", outcome.problem, *state[outcome.read]);
    right = right && outcome.problem.empty();
    for (size_t w = 0; w < results.size(); w++) results[w][a] = outcome.problem.empty() ? outcome.writes[w] : kUnknown;
  }
  for (size_t w = 0; w < results.size(); w++) place_whole(context, w, {id_of(results[w])});
  if (context.op.attrs.has("weights") || context.op.attrs.has("piece_weights")) {
    context.writes[0].front().state.placement.by_axis = weighted_norm(context, id_of(results[0]));
  } else if (right) {
    std::vector<TensorPlacement>& made = made_[key_];
    for (const AxisPlacements& result : results) made.push_back({id_of(result)});
  }
}

// Splits operands with the output's element count at every segment bound of any of them; all others are scalars.
void PlacementFlow::elementwise(OpContext& context, AxisRule rule) {
  const int64_t count = context.write_tensors[0]->count();
  std::vector<int64_t> cuts = {0, count};
  for (size_t r = 0; r < context.reads.size(); r++) {
    const Tensor& tensor = *context.read_tensors[r];
    if (tensor.count() != count) continue;
    for (const Segment& segment : context.reads[r])
      cuts.push_back((segment.begin - tensor.byte_offset) / dtype_bytes(tensor.dtype));
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (Segments& write : context.writes) write.clear();
  std::vector<size_t> at(context.reads.size(), 0);
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    const int64_t begin = *cut, end = *std::next(cut);
    std::vector<const ValueState*> state;
    TensorPlacement result;
    for (size_t r = 0; r < context.reads.size(); r++) {
      const Tensor& tensor = *context.read_tensors[r];
      const Segments& segments = context.reads[r];
      if (segments.empty()) return by_tensor(context, rule);
      if (tensor.count() == count)
        while (at[r] + 1 < segments.size() &&
               segments[at[r]].end <= tensor.byte_offset + begin * dtype_bytes(tensor.dtype))
          at[r]++;
      state.push_back(&segments[at[r]].state);
      const TensorPlacement& placement = state.back()->placement;
      if (placement.piece_count > 0)
        result.piece_begin = placement.piece_begin, result.piece_count = placement.piece_count;
      if (placement.layout >= 0 && result.layout < 0) {
        result.layout = placement.layout;
        result.origin =
            (placement.origin - tensor.byte_offset) / dtype_bytes(tensor.dtype);  // elements before the tensor
      }
    }
    const std::vector<TensorPlacement> made = follow_segment(context, rule, state);
    for (size_t w = 0; w < context.writes.size(); w++) {
      const Tensor& tensor = *context.write_tensors[w];
      if (tensor.count() != count) {
        if (begin == 0) context.writes[w] = whole(tensor, {made[w].by_axis});
        continue;
      }
      TensorPlacement placement = made[w];
      placement.origin = result.layout < 0 ? 0 : tensor.byte_offset + result.origin * dtype_bytes(tensor.dtype);
      placement.piece_begin = result.piece_begin, placement.piece_count = result.piece_count;
      context.writes[w].push_back(part(tensor, begin, end, placement));
    }
  }
}

// Applies an elementwise op to one segment of each of its operands.
std::vector<TensorPlacement> PlacementFlow::follow_segment(const OpContext& context, AxisRule rule,
                                                           const std::vector<const ValueState*>& state) {
  key_ = {context.body.kind_of(context.ref)};
  for (const ValueState* one : state) key_.insert(key_.end(), {one->placement.by_axis, one->placement.layout});
  if (const auto known = made_.find(key_); known != made_.end()) return known->second;
  const bool pieces =
      std::any_of(state.begin(), state.end(), [](const ValueState* one) { return one->placement.layout >= 0; });
  bool right = true;
  const std::vector<TensorPlacement> made =
      pieces ? follow_pieces(context, rule, state, right) : follow_axes(context, rule, state, right);
  if (right) made_[key_] = made;
  return made;
}

std::vector<TensorPlacement> PlacementFlow::follow_axes(const OpContext& context, AxisRule rule,
                                                        const std::vector<const ValueState*>& state, bool& right) {
  std::vector<AxisPlacements> results(context.writes.size(), all(kUnknown));
  for (size_t a = 0; a < axes_.size(); a++) {
    AxisPlacements reads;
    for (const ValueState* one : state) reads.push_back(on_axes(one->placement.by_axis)[a]);
    const AxisOutcome outcome = on_axis(context, rule, a, reads);
    if (!outcome.problem.empty()) context.report("placement", outcome.problem, *state[outcome.read]);
    right = right && outcome.problem.empty();
    for (size_t w = 0; w < results.size(); w++) results[w][a] = outcome.problem.empty() ? outcome.writes[w] : kUnknown;
  }
  std::vector<TensorPlacement> placements;
  placements.reserve(results.size());
  for (const AxisPlacements& result : results) placements.push_back({id_of(result)});
  return placements;
}

namespace {

struct SourceRow {
  const OpDef* op;
  AxisPlacement placement;
};
constexpr SourceRow kSources[] = {{&ops::fill, kInvariant},        {&ops::values, kInvariant},
                                  {&ops::iota, kInvariant},        {&ops::next_batch, kInvariant},
                                  {&ops::feed_tokens, kInvariant}, {&ops::init_params, kInvariant},
                                  {&ops::load_state, kInvariant},  {&ops::random_int, kVarying}};

}  // namespace

const AxisPlacement* find_source_placement(const OpDef& op) {
  const auto row =
      std::find_if(std::begin(kSources), std::end(kSources), [&](const SourceRow& r) { return r.op == &op; });
  return row == std::end(kSources) ? nullptr : &row->placement;
}

void PlacementFlow::sources(OpContext& context) {
  const Op& op = context.op;
  const AxisPlacement* placement = find_source_placement(*op.def);
  PRUN_CHECK(placement != nullptr, fmt::format("{} reads nothing and has no placement rule", op.def->name));
  AxisPlacements base = all(op.is(ops::fill) && op.attrs.number("value") == 0 ? kZero : *placement);
  if (op.is(ops::next_batch)) {
    for (const std::string& name : split(op.attrs.text("axis"), ','))
      for (const size_t a : axes_of(name)) base[a] = shard(0);
    const int chunks = static_cast<int>(op.attrs.integer("chunks", 1));
    const std::vector<int64_t> whole_samples = op.attrs.integers("whole");
    for (size_t w = 0; w < context.writes.size(); w++) {
      const Tensor& batch = *context.write_tensors[w];
      const int64_t tokens = batch.shape.size() > 1 ? batch.shape[1] : batch.count();
      AxisPlacements placements = base;
      if (w >= whole_samples.size() || whole_samples[w] == 0)
        for (const size_t a : axes_of(op.attrs.text("tokens_axis")))
          placements[a] = shard(1, cut_into({tokens * sizes_[a]}, sizes_[a], chunks));
      context.writes[w] = whole(batch, {id_of(placements)});
    }
    return;
  }
  for (size_t w = 0; w < context.writes.size(); w++)
    context.writes[w] = whole(*context.write_tensors[w], {id_of(base)});
  if (!makes_state(op)) return;

  for (size_t a = 0; a < axes_.size(); a++)
    if (stages_[a]) base[a] = varying(Differs::stages);
  const std::vector<int64_t> starts = op.attrs.integers("starts"), counts = op.attrs.integers("counts");
  const std::vector<int64_t> outer =
      op.attrs.has("split_outer") ? op.attrs.integers("split_outer") : std::vector<int64_t>();
  const std::vector<std::string> axes = split(op.attrs.text("split_axis") + ",", ','),
                                 parts = split(op.attrs.text("split_parts") + ",", ',');
  std::vector<int64_t> slices, block_counts, blocks;
  const std::vector<int64_t> grains = op.attrs.integers("split_grain"), dims = op.attrs.integers("split_dim");
  if (!outer.empty()) {
    slices = op.attrs.integers("split_slice"), block_counts = op.attrs.integers("split_block_count");
    blocks = op.attrs.integers("split_blocks");
  }
  auto next_block = blocks.begin();
  std::vector<Piece> pieces;
  for (size_t p = 0; p < starts.size() && p < counts.size(); p++) {
    AxisPlacements mine = base;
    const std::string axis = p < axes.size() ? axes[p] : "";
    if (p < outer.size() && outer[p] > 0) {
      std::vector<int64_t> extents(next_block, next_block + block_counts[p]);
      next_block += block_counts[p];
      for (int64_t& extent : extents) extent /= slices[p];
      const int64_t grain = p < grains.size() ? grains[p] : 1;
      const int dim = p < dims.size() ? static_cast<int>(dims[p]) : outer[p] == 1 ? 0 : 1;
      for (const size_t a : axes_of(axis.empty() ? kPaddingAxis : axis))
        mine[a] = shard(dim, cut_into(extents, sizes_[a], 1, grain));
      if (p < parts.size() && !parts[p].empty())
        for (const size_t a : axes_of(parts[p])) mine[a] = shard(0);
    }
    pieces.push_back({starts[p], starts[p] + counts[p], id_of(mine)});
  }
  std::sort(pieces.begin(), pieces.end());
  const Tensor& flat = *context.write_tensors[0];
  const std::string over = op.attrs.text("axis");
  const std::vector<size_t> sharded = axes_in(over);
  if (over.empty() || sharded.empty()) {
    context.writes[0] = whole(flat, {id_of(all(kZero))});
    for (const Piece& piece : pieces) context.writes[0].push_back(part(flat, piece.begin, piece.end, parameter(piece)));
    return;
  }
  std::vector<const TensorPlacement*> placements;
  std::vector<TensorPlacement> of_pieces;
  for (const Piece& piece : pieces) of_pieces.push_back({piece.by_axis});
  for (const TensorPlacement& of_piece : of_pieces) placements.push_back(&of_piece);
  AxisPlacements of_shard = on_axes(joined(placements));
  for (const size_t a : sharded) of_shard[a] = shard(kFlat);
  context.writes[0] = whole(flat, {id_of(of_shard), id_of(Layout{sharded, flat.count(), pieces}), flat.byte_offset});
}

void PlacementFlow::follow(OpContext& context) {
  if (context.writes.empty() && !context.op.is(ops::sample_token) && !context.op.is(ops::write_rows)) return;
  for (size_t w = 0; w < context.writes.size(); w++) place_whole(context, w, {});
  if (context.op.communicates()) return communicate(context);
  if (context.reads.empty()) return sources(context);
  if (finds_matrices(context.op))
    return context.op.is(ops::orthogonalize) ? orthogonalize(context) : apply_update(context);
  if (is_factored(context.op)) return factored(context);
  if (const AxisRule rule = find_elementwise_rule(*context.op.def)) return elementwise(context, rule);
  const AxisRule rule = find_axis_rule(*context.op.def);
  PRUN_CHECK(rule != nullptr, fmt::format("{} has no placement rule", context.op.def->name));
  by_tensor(context, rule);
}

}  // namespace prun::verify
