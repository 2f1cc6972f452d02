// Follows placements through an op: sources, communication, and by the table of placement_rules.cc all else.
#include "verify/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "verify/values.h"

namespace prun::verify {
namespace {

constexpr const char* kRule = "placement";

std::vector<std::string> names_between_commas(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    names.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return names;
}

int64_t size_of(const Tensor& tensor) { return dtype_bytes(tensor.dtype); }
Segments whole(const Tensor& tensor, const Spread& spread) {
  Held held;
  held.spread = spread;
  return {{tensor.byte_offset, tensor.byte_offset + tensor.bytes(), held}};
}
Segment part(const Tensor& tensor, int64_t begin, int64_t end, const Spread& spread) {  // elements
  Held held;
  held.spread = spread;
  return {tensor.byte_offset + begin * size_of(tensor), tensor.byte_offset + end * size_of(tensor), held};
}

Spread parameter(const Piece& piece) { return {piece.marks, -1, 0, piece.begin, piece.end - piece.begin}; }

bool averages(const Op& op) { return op.attrs.text("op", "sum") == "avg"; }
bool picks(const Op& op) { return op.attrs.text("op", "sum") == "max" || op.attrs.text("op", "sum") == "min"; }

}  // namespace

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
  for (const BodyView& body : view.bodies) {
    for (const Stream& stream : body.body->streams) {
      for (const Op& op : stream.ops) {
        if (!op.is("next_batch")) continue;
        for (const std::string& name : names_between_commas(op.attrs.text("axis"))) data.insert(name);
        tokens.insert(op.attrs.text("tokens_axis"));
      }
    }
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
        stages =
            stages || job.class_of_rank[static_cast<size_t>(rank)] != job.class_of_rank[static_cast<size_t>(other)];
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
  const bool lenient = moment.op.is("norm2") || is_optimizer(moment.op);
  if (any(Kind::unknown) && !lenient) return everywhere(kUnknown);
  const AxisView view{moment, axes_[axis], sizes_[axis], combine_[axis]};
  const bool plain = !any(Kind::partial) && !any(Kind::shard) && !any(Kind::varying) && !any(Kind::unknown);
  const bool splits = view("axis") || view("tokens_axis");
  const bool weighted = moment.op.attrs.has("weights") || moment.op.attrs.has("piece_weights");
  const bool cut = moment.op.is("cut_pieces") ||
                   std::any_of(reads.begin(), reads.end(), [](const Mark& mark) { return mark.pieces >= 0; });
  if (plain && !splits && !weighted && !cut && !any(Kind::zero)) return everywhere(kSame);
  if (rule == nullptr) return everywhere(plain && !splits ? kSame : kUnknown);
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
    const bool one_by_one = moment.op.is("norm2");
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
    if (!outcome.problem.empty()) moment.report(kRule, outcome.problem, *held[outcome.read]);
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
    for (const Segment& segment : moment.reads[r]) cuts.insert((segment.begin - tensor.byte_offset) / size_of(tensor));
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
        while (at[r] + 1 < segments.size() && segments[at[r]].end <= tensor.byte_offset + begin * size_of(tensor))
          at[r]++;
      held.push_back(&segments[at[r]].held);
      const Spread& spread = held.back()->spread;
      if (spread.piece_count > 0) result.piece_begin = spread.piece_begin, result.piece_count = spread.piece_count;
      if (spread.layout >= 0 && result.layout < 0) {
        result.layout = spread.layout;
        result.origin = (spread.origin - tensor.byte_offset) / size_of(tensor);  // elements before the tensor
      }
    }
    std::vector<Marks> results(moment.writes.size(), all(kUnknown));
    for (size_t a = 0; a < axes_.size(); a++) {
      Marks reads;
      for (const Held* one : held) reads.push_back(marks(one->spread.marks)[a]);
      const AxisOutcome outcome = on_axis(moment, rule, a, reads);
      if (!outcome.problem.empty()) moment.report(kRule, outcome.problem, *held[outcome.read]);
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
      spread.marks = id_of(results[w]);
      spread.origin = result.layout < 0 ? 0 : tensor.byte_offset + result.origin * size_of(tensor);
      moment.writes[w].push_back(part(tensor, begin, end, spread));
    }
  }
}

void Spreads::sources(Moment& moment) {
  const Op& op = moment.op;
  const bool known = op.is("fill") || op.is("values") || op.is("iota") || op.is("next_batch") || op.is("init_params");
  Marks base = all(known ? kSame : kUnknown);
  if (op.is("fill") && op.attrs.number("value") == 0) base = all(kZero);
  if (op.is("random_int")) base = all(kVarying);
  if (op.is("next_batch")) {
    for (const std::string& name : names_between_commas(op.attrs.text("axis")))
      for (const size_t a : axes_of(name)) base[a] = shard(0);
    for (const size_t a : axes_of(op.attrs.text("tokens_axis"))) base[a] = shard(1);
  }
  for (size_t w = 0; w < moment.writes.size(); w++) moment.writes[w] = whole(*moment.write_tensors[w], {id_of(base)});
  if (!op.is("init_params")) return;

  for (size_t a = 0; a < axes_.size(); a++)
    if (stages_[a] || drifts_[a]) base[a] = kVarying;
  const std::vector<int64_t> starts = op.attrs.integers("starts"), counts = op.attrs.integers("counts");
  const std::vector<int64_t> outer =
      op.attrs.has("split_outer") ? op.attrs.integers("split_outer") : std::vector<int64_t>();
  const std::vector<std::string> split = names_between_commas(op.attrs.text("split_axis"));
  std::vector<Piece> pieces;
  for (size_t p = 0; p < starts.size() && p < counts.size(); p++) {
    Marks mine = base;
    const std::string axis = p < split.size() ? split[p] : "";
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
  if (const AxisRule rule = find_elementwise_rule(moment.op.def->name)) return elementwise(moment, rule);
  by_tensor(moment, find_axis_rule(moment.op.def->name));
}

void Spreads::communicate(Moment& moment) {
  const Op& op = moment.op;
  const std::vector<size_t> axes = axes_of(op.axis);
  if (op.reads.empty() || op.writes.empty()) return;
  if (axes.empty()) return alone(moment);
  if (op.is("all_reduce")) return reduce(moment, axes);
  if (op.is("all_gather") && axes.size() == 1) return gather(moment, axes[0]);
  if (op.is("all_to_all")) check_pieces(moment);
  if (op.is("all_to_all") && axes.size() == 1) return exchange(moment, axes[0]);
  if (op.is("reduce_scatter") && axes.size() == 1) return reduce_scatter(moment, axes[0]);
  std::vector<const Spread*> spreads;
  for (const Segment& segment : moment.reads[0]) spreads.push_back(&segment.held.spread);
  Marks result = marks(joined(spreads));
  for (const size_t a : axes) result[a] = op.is("broadcast") ? kSame : kUnknown;
  moment.writes[0] = whole(*moment.write_tensors[0], {id_of(result)});
}

// A group of one copies, perhaps with a dim for the ranks before the others, or without it.
void Spreads::alone(Moment& moment) {
  elementwise(moment, find_elementwise_rule("copy"));
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

// What a reduction over an axis makes of a mark; "" or what is wrong.
static std::string reduced(const Op& op, const std::string& axis, Mark& mark) {
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
  if (mark.kind != Kind::zero && mark.kind != Kind::unknown) mark = kSame;
  mark.pieces = pieces;
  return problem;
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
      if (!problem.empty()) moment.report(kRule, problem, segment.held);
    }
    spread.marks = others_differ ? 0 : id_of(result);
    if (spread.layout >= 0) {
      Layout layout = layouts_[static_cast<size_t>(spread.layout)];
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
    moment.report(kRule, fmt::format("exchanges {} pieces in a group of {} along {}", pieces, ranks, moment.op.axis),
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
  const int more = static_cast<int>(to.shape.size()) - static_cast<int>(from.shape.size());
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
    moment.report(kRule,
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
  if (one && first.layout >= 0 && layouts_[static_cast<size_t>(first.layout)].axis == static_cast<int>(axis)) {
    const Layout layout = layouts_[static_cast<size_t>(first.layout)];
    if (layout.elements != from.count() || first.origin != from.byte_offset) {
      moment.report(kRule,
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
    moment.report(kRule, fmt::format("gathers over {} what every rank has already", axes_[axis]), reads.front().held);
  if (mark.kind == Kind::partial)
    moment.report(kRule, fmt::format("gathers over {} partial sums: a reduction is missing", axes_[axis]),
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
    if (!problem.empty()) moment.report(kRule, problem, segment.held);
    const int64_t begin = (segment.begin - from.byte_offset) / size_of(from),
                  end = (segment.end - from.byte_offset) / size_of(from);
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
