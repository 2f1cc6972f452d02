// Follows placements through an op: sources here, communication in placement_comm.cc, all else by the table of
// placement_rules.cc.
#include "verify/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "ir/ops.h"
#include "verify/values.h"

namespace prun::verify {

Segments whole(const Tensor& tensor, const Spread& spread) {
  Held held;
  held.spread = spread;
  return {{tensor.byte_offset, tensor.byte_offset + tensor.bytes(), held}};
}

Segment part(const Tensor& tensor, int64_t begin, int64_t end, const Spread& spread) {
  Held held;
  held.spread = spread;
  const int64_t size = dtype_bytes(tensor.dtype);
  return {tensor.byte_offset + begin * size, tensor.byte_offset + end * size, held};
}

Spread parameter(const Piece& piece) { return {piece.marks, -1, 0, piece.begin, piece.end - piece.begin}; }

std::string mark_text(const Mark& mark) {
  switch (mark.kind) {
    case Kind::unknown:
      return "unknown";
    case Kind::zero:
      return "zero";
    case Kind::same:
      return "I";
    case Kind::shard:
      return mark.dim == kFlat ? "S" : fmt::format("S({})", mark.dim);
    case Kind::partial:
      return "P";
    case Kind::varying:
      return "V";
  }
  return "";
}

void move_shard(Mark& mark, int by) {
  if (mark.kind == Kind::shard && mark.dim != kFlat) mark.dim = static_cast<int8_t>(mark.dim + by);
}

bool AxisView::operator()(const char* attribute) const { return moment.op.attrs.text(attribute) == axis; }

Spreads::Spreads(const JobView& view) {
  const Job& job = *view.job;
  const Mesh& mesh = job.classes.front().mesh;
  std::set<std::string> data, tokens;
  for (const std::vector<BodyView>* bodies : {&view.bodies, &view.steps})
    for (const BodyView& body : *bodies)
      for (const OpRef ref : body.order.sequence()) {
        const Op& op = body.op(ref);
        if (!op.is(ops::next_batch)) continue;
        for (const std::string& name : split(op.attrs.text("axis"), ',')) data.insert(name);
        tokens.insert(op.attrs.text("tokens_axis"));
      }
  for (const Axis& axis : mesh.axes()) {
    if (axis.size < 2) continue;
    axes_.push_back(axis.name);
    sizes_.push_back(axis.size);
    const bool averaged = data.count(axis.name) != 0 || data.count(kWorld) != 0;
    combine_.push_back(averaged ? Combine::average : tokens.count(axis.name) != 0 ? Combine::any : Combine::sum);
    bool stages = false;
    for (int rank = 0; rank < mesh.ranks() && !stages && job.classes.size() > 1; rank++)
      for (const int other : mesh.group(axis.name, rank))
        stages = stages || job.class_of_rank[rank] != job.class_of_rank[other];
    stages_.push_back(stages);
    const std::vector<std::string> drift = drift_axes(job.classes.front());
    drifts_.push_back(std::find(drift.begin(), drift.end(), axis.name) != drift.end());
  }
  id_of(all(kUnknown));
}

int Spreads::id_of(const Marks& marks) {
  const auto [known, fresh] = mark_ids_.try_emplace(marks, static_cast<int>(marks_.size()));
  if (fresh) marks_.push_back(marks);
  return known->second;
}

int Spreads::id_of(Layout layout) {
  const auto [known, fresh] = layout_ids_.try_emplace(layout, static_cast<int>(layouts_.size()));
  if (fresh) layouts_.push_back(std::move(layout));
  return known->second;
}

std::vector<size_t> Spreads::axes_of(const std::string& name) const {
  std::vector<size_t> found;
  for (size_t a = 0; a < axes_.size(); a++)
    if (name == kWorld || axes_[a] == name) found.push_back(a);
  return found;
}

// One mark for several pieces on each axis; zeros go along with anything.
int Spreads::joined(const std::vector<const Spread*>& spreads) {
  if (spreads.empty()) return 0;
  Marks result = marks(spreads[0]->marks);
  for (const Spread* spread : spreads) {
    const Marks& other = marks(spread->marks);
    for (size_t a = 0; a < axes_.size(); a++) {
      if (result[a] == other[a] || other[a].kind == Kind::zero) continue;
      // What is partial in places is not whole.
      const bool partly = result[a].kind == Kind::partial && other[a].kind == Kind::same;
      const bool now = result[a].kind == Kind::same && other[a].kind == Kind::partial;
      if (partly) continue;
      result[a] = result[a].kind == Kind::zero || now ? other[a] : kUnknown;
    }
  }
  return id_of(result);
}

// What is partial on some of the ranks is partial in the sum.
Spread Spreads::together(const std::vector<const Spread*>& spreads) {
  Marks result = marks(joined(spreads));
  for (const Spread* spread : spreads)
    for (size_t a = 0; a < axes_.size(); a++)
      if (marks(spread->marks)[a].kind == Kind::partial) result[a] = marks(spread->marks)[a];
  return {id_of(result)};
}

// Stages of a pipeline hold different things; a ring hands on the parts of one.
Spread Spreads::arrived(const Spread& sent, const std::string& axis, int offset) {
  Marks result = marks(sent.marks);
  for (const size_t a : axes_of(axis)) {
    if (result[a].kind == Kind::shard && !stages_[a]) {
      result[a].turn = static_cast<int16_t>((result[a].turn + offset) % sizes_[a]);
    } else if (result[a].kind != Kind::same || stages_[a]) {
      result[a] = kVarying;
    }
  }
  return {id_of(result)};
}

std::string Spreads::not_whole(const Spread& spread) const {
  for (size_t a = 0; a < axes_.size(); a++) {
    const Mark& mark = marks(spread.marks)[a];
    const bool differs = mark.kind == Kind::partial || mark.kind == Kind::shard || mark.kind == Kind::varying;
    if (differs && !stages_[a]) return fmt::format("{} over {}", mark_text(mark), axes_[a]);
  }
  return "";
}

std::string Spreads::difference(const Spread& before, const Spread& now) const {
  for (size_t a = 0; a < axes_.size(); a++) {
    const Mark &x = marks(before.marks)[a], &y = marks(now.marks)[a];
    const bool free = x.kind == Kind::unknown || y.kind == Kind::unknown || x.kind == Kind::zero ||
                      y.kind == Kind::zero || x.kind == Kind::varying;
    if (y.kind == Kind::partial || (!free && (x.kind != y.kind || x.dim != y.dim)))
      return fmt::format("begin a step {} and end it {} over {}", mark_text(x), mark_text(y), axes_[a]);
  }
  return "";
}

AxisOutcome Spreads::on_axis(const Moment& moment, AxisRule rule, size_t axis, const Marks& reads) {
  const auto any = [&](Kind kind) {
    return std::any_of(reads.begin(), reads.end(), [kind](const Mark& mark) { return mark.kind == kind; });
  };
  const auto everywhere = [&](Mark mark) { return AxisOutcome{Marks(moment.writes.size(), mark), "", 0}; };
  // Of what a norm or an update takes, what is known must be right.
  const bool lenient = moment.op.is(ops::norm2) || is_optimizer(moment.op);
  if (any(Kind::unknown) && !lenient) return everywhere(kUnknown);
  const AxisView view{moment, axes_[axis], sizes_[axis], combine_[axis]};
  const bool plain = !any(Kind::partial) && !any(Kind::shard) && !any(Kind::varying) && !any(Kind::unknown);
  const bool splits = view("axis") || view("tokens_axis");
  const bool weighted = moment.op.attrs.has("weights") || moment.op.attrs.has("piece_weights");
  const bool cut = moment.op.is(ops::cut_pieces) ||
                   std::any_of(reads.begin(), reads.end(), [](const Mark& mark) { return mark.pieces >= 0; });
  if (plain && !splits && !weighted && !cut && !any(Kind::zero)) return everywhere(kSame);
  if (any(Kind::varying) && !lenient) return everywhere(kVarying);
  AxisOutcome outcome = rule(view, reads);
  outcome.writes.resize(moment.writes.size(), outcome.writes.empty() ? kUnknown : outcome.writes.back());
  return outcome;
}

void Spreads::by_tensor(Moment& moment, AxisRule rule) {
  std::vector<Marks> operands;
  std::vector<const Held*> held;
  std::vector<size_t> read_of;  // by operand
  static const Held kNothing;
  for (size_t r = 0; r < moment.reads.size(); r++) {
    const Segments& segments = moment.reads[r];
    std::vector<const Spread*> spreads;
    for (const Segment& segment : segments) spreads.push_back(&segment.held.spread);
    // A norm looks at each segment; other ops want tensors of one kind.
    const bool one_by_one = moment.op.is(ops::norm2);
    for (size_t s = 0; s < (one_by_one ? segments.size() : 1); s++) {
      operands.push_back(marks(one_by_one ? spreads[s]->marks : joined(spreads)));
      held.push_back(segments.empty() ? &kNothing : &segments[s].held);
      read_of.push_back(r);
    }
  }
  std::vector<Marks> results(moment.writes.size(), all(kUnknown));
  for (size_t a = 0; a < axes_.size(); a++) {
    Marks reads;
    for (const Marks& operand : operands) reads.push_back(operand[a]);
    const AxisOutcome outcome = on_axis(moment, rule, a, reads);
    if (!outcome.problem.empty()) moment.report("placement", outcome.problem, *held[outcome.read]);
    for (size_t w = 0; w < results.size(); w++) results[w][a] = outcome.problem.empty() ? outcome.writes[w] : kUnknown;
  }
  for (size_t w = 0; w < results.size(); w++) moment.writes[w] = whole(*moment.write_tensors[w], {id_of(results[w])});
  if (moment.op.attrs.has("weights"))
    moment.writes[0].front().held.spread.marks = weighted_norm(moment, operands, read_of, id_of(results[0]));
}

// Weights that the axes with parts explain, 1 over the ranks that have the same there, leave the other axes as they
// are.
int Spreads::weighted_norm(const Moment& moment, const std::vector<Marks>& operands, const std::vector<size_t>& reads,
                           int id) {
  const std::vector<double> weights = moment.op.attrs.numbers("weights");
  Marks result = marks(id);
  for (size_t o = 0; o < operands.size(); o++) {
    double weight = reads[o] < weights.size() ? weights[reads[o]] : 1;
    const bool padding =
        std::any_of(operands[o].begin(), operands[o].end(), [](const Mark& mark) { return mark.kind == Kind::zero; });
    if (padding) continue;
    for (size_t a = 0; a < axes_.size(); a++)
      if (result[a].kind == Kind::partial && operands[o][a].kind == Kind::same) weight *= sizes_[a];
    if (weight < 0.999 || weight > 1.001) return id;
  }
  for (size_t a = 0; a < axes_.size(); a++) {
    const bool same = std::all_of(operands.begin(), operands.end(), [a](const Marks& operand) {
      return operand[a].kind == Kind::same || operand[a].kind == Kind::zero;
    });
    if (same && result[a].kind == Kind::unknown) result[a] = kSame;
  }
  return id_of(result);
}

// Operands of as many elements as the output are cut where any of them changes; the others are scalars.
void Spreads::elementwise(Moment& moment, AxisRule rule) {
  const int64_t count = moment.write_tensors[0]->count();
  std::set<int64_t> cuts = {0, count};
  for (size_t r = 0; r < moment.reads.size(); r++) {
    const Tensor& tensor = *moment.read_tensors[r];
    if (tensor.count() != count) continue;
    for (const Segment& segment : moment.reads[r])
      cuts.insert((segment.begin - tensor.byte_offset) / dtype_bytes(tensor.dtype));
  }
  for (Segments& write : moment.writes) write.clear();
  std::vector<size_t> at(moment.reads.size(), 0);
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    const int64_t begin = *cut, end = *std::next(cut);
    std::vector<const Held*> held;
    Spread result;
    for (size_t r = 0; r < moment.reads.size(); r++) {
      const Tensor& tensor = *moment.read_tensors[r];
      const Segments& segments = moment.reads[r];
      if (segments.empty()) return by_tensor(moment, rule);
      if (tensor.count() == count)
        while (at[r] + 1 < segments.size() &&
               segments[at[r]].end <= tensor.byte_offset + begin * dtype_bytes(tensor.dtype))
          at[r]++;
      held.push_back(&segments[at[r]].held);
      const Spread& spread = held.back()->spread;
      if (spread.piece_count > 0) result.piece_begin = spread.piece_begin, result.piece_count = spread.piece_count;
      if (spread.layout >= 0 && result.layout < 0) {
        result.layout = spread.layout;
        result.origin = (spread.origin - tensor.byte_offset) / dtype_bytes(tensor.dtype);  // elements before the tensor
      }
    }
    std::vector<Marks> results(moment.writes.size(), all(kUnknown));
    for (size_t a = 0; a < axes_.size(); a++) {
      Marks reads;
      for (const Held* one : held) reads.push_back(marks(one->spread.marks)[a]);
      const AxisOutcome outcome = on_axis(moment, rule, a, reads);
      if (!outcome.problem.empty()) moment.report("placement", outcome.problem, *held[outcome.read]);
      for (size_t w = 0; w < results.size(); w++)
        results[w][a] = outcome.problem.empty() ? outcome.writes[w] : kUnknown;
    }
    for (size_t w = 0; w < moment.writes.size(); w++) {
      const Tensor& tensor = *moment.write_tensors[w];
      if (tensor.count() != count) {
        if (begin == 0) moment.writes[w] = whole(tensor, {id_of(results[w])});
        continue;
      }
      Spread spread = result;
      spread.origin = result.layout < 0 ? 0 : tensor.byte_offset + result.origin * dtype_bytes(tensor.dtype);
      // What is updated in place holds the same parameters as before, whatever the gradient beside it looks like.
      const std::vector<TensorId>& reads = moment.op.reads;
      const auto updated = std::find(reads.begin(), reads.end(), moment.op.writes[w]);
      if (updated != reads.end() && held[updated - reads.begin()]->spread.layout >= 0)
        spread = held[updated - reads.begin()]->spread;
      spread.marks = id_of(results[w]);
      moment.writes[w].push_back(part(tensor, begin, end, spread));
    }
  }
}

namespace {

struct SourceRow {
  const OpDef* op;
  Mark mark;
};
constexpr SourceRow kSources[] = {{&ops::fill, kSame},       {&ops::values, kSame},      {&ops::iota, kSame},
                                  {&ops::next_batch, kSame}, {&ops::init_params, kSame}, {&ops::random_int, kVarying}};

}  // namespace

const Mark* find_source_mark(const OpDef& op) {
  const auto row =
      std::find_if(std::begin(kSources), std::end(kSources), [&](const SourceRow& r) { return r.op == &op; });
  return row == std::end(kSources) ? nullptr : &row->mark;
}

void Spreads::sources(Moment& moment) {
  const Op& op = moment.op;
  const Mark* mark = find_source_mark(*op.def);
  PRUN_CHECK(mark != nullptr, fmt::format("{} reads nothing and has no placement rule", op.def->name));
  Marks base = all(op.is(ops::fill) && op.attrs.number("value") == 0 ? kZero : *mark);
  if (op.is(ops::next_batch)) {
    for (const std::string& name : split(op.attrs.text("axis"), ','))
      for (const size_t a : axes_of(name)) base[a] = shard(0);
    for (const size_t a : axes_of(op.attrs.text("tokens_axis"))) base[a] = shard(1);
  }
  for (size_t w = 0; w < moment.writes.size(); w++) moment.writes[w] = whole(*moment.write_tensors[w], {id_of(base)});
  if (!op.is(ops::init_params)) return;

  for (size_t a = 0; a < axes_.size(); a++)
    if (stages_[a] || drifts_[a]) base[a] = kVarying;
  const std::vector<int64_t> starts = op.attrs.integers("starts"), counts = op.attrs.integers("counts");
  const std::vector<int64_t> outer =
      op.attrs.has("split_outer") ? op.attrs.integers("split_outer") : std::vector<int64_t>();
  const std::vector<std::string> axes = split(op.attrs.text("split_axis"), ',');
  std::vector<Piece> pieces;
  for (size_t p = 0; p < starts.size() && p < counts.size(); p++) {
    Marks mine = base;
    const std::string axis = p < axes.size() ? axes[p] : "";
    if (p < outer.size() && outer[p] > 0)
      for (const size_t a : axes_of(axis)) mine[a] = shard(outer[p] == 1 ? 0 : 1);
    pieces.push_back({starts[p], starts[p] + counts[p], id_of(mine)});
  }
  std::sort(pieces.begin(), pieces.end());
  const Tensor& flat = *moment.write_tensors[0];
  const std::string over = op.attrs.text("axis");
  const std::vector<size_t> sharded = axes_of(over);
  if (over.empty() || sharded.empty()) {
    moment.writes[0] = whole(flat, {id_of(all(kZero))});
    for (const Piece& piece : pieces) moment.writes[0].push_back(part(flat, piece.begin, piece.end, parameter(piece)));
    return;
  }
  std::vector<const Spread*> spreads;
  std::vector<Spread> of_pieces;
  for (const Piece& piece : pieces) of_pieces.push_back({piece.marks});
  for (const Spread& spread : of_pieces) spreads.push_back(&spread);
  Marks of_shard = marks(joined(spreads));
  for (const size_t a : sharded) of_shard[a] = shard(kFlat);
  const int layout = sharded.size() == 1 ? id_of(Layout{static_cast<int>(sharded[0]), flat.count(), pieces}) : -1;
  moment.writes[0] = whole(flat, {id_of(of_shard), layout, flat.byte_offset});
}

void Spreads::follow(Moment& moment) {
  if (moment.writes.empty()) return;
  for (size_t w = 0; w < moment.writes.size(); w++) moment.writes[w] = whole(*moment.write_tensors[w], {});
  if (moment.op.communicates()) return communicate(moment);
  if (moment.reads.empty()) return sources(moment);
  if (const AxisRule rule = find_elementwise_rule(*moment.op.def)) return elementwise(moment, rule);
  const AxisRule rule = find_axis_rule(*moment.op.def);
  PRUN_CHECK(rule != nullptr, fmt::format("{} has no placement rule", moment.op.def->name));
  by_tensor(moment, rule);
}

}  // namespace prun::verify
