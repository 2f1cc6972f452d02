// The kinds of faults, one function each.
#include "mutant.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "compile/compile_state.h"
#include "compile/ir_build.h"
#include "ir/ops.h"
#include "ir/order.h"
#include "prun/sdk/operand_view.h"

namespace prun::mutate {
namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return static_cast<size_t>(random() % n); }

struct Place {
  size_t cls, stream, index;
  BodyId body = kStepBody;
};

Body& step_of(Job& job, Place at) { return job.classes[at.cls].bodies[at.body]; }
std::vector<Op>& ops_of(Job& job, Place at) { return step_of(job, at).streams[at.stream].ops; }
Op& op_of(Job& job, Place at) { return ops_of(job, at)[at.index]; }

// Picks a random op that the predicate accepts, in a step or another body.
template <class Wanted>
bool pick(Job& job, Random& random, Place& at, Wanted wanted, BodyId body = kStepBody) {
  std::vector<Place> places;
  for (size_t c = 0; c < job.classes.size(); c++) {
    const std::vector<Stream>& streams = job.classes[c].bodies[body].streams;
    for (size_t s = 0; s < streams.size(); s++)
      for (size_t i = 0; i < streams[s].ops.size(); i++)
        if (wanted(job.classes[c], streams[s].ops[i])) places.push_back({c, s, i, body});
  }
  if (places.empty()) return false;
  at = places[below(random, places.size())];
  return true;
}

std::string name_of(Job& job, Place at) {
  const Op& op = op_of(job, at);
  std::string text =
      fmt::format("{} ({}{}#{}", op.def->name, job.classes.size() > 1 ? fmt::format("class {}, ", at.cls) : "",
                  step_of(job, at).streams[at.stream].name, at.index);
  return text + (op.site.known() ? ", " + op.site.text() + ")" : ")");
}

// Replaces the indices of edges to ops of one stream by `to(index)`; -1 removes the edge.
template <class Renumber>
void renumber(Body& body, size_t stream, Renumber to) {
  for (Stream& s : body.streams) {
    for (Op& op : s.ops) {
      for (Edge& edge : op.waits)
        if (edge.stream == static_cast<int>(stream)) edge.index = to(edge.index);
      std::erase_if(op.waits, [](const Edge& edge) { return edge.index < 0; });
    }
  }
}

// Shifts the repeat's ops of a stream from `index` on by `by`, so that the same ops repeat.
void move_repeat(Body& body, size_t stream, int index, int by) {
  if (!body.repeat.any()) return;
  Repeat::Span& ops = body.repeat.ops[stream];
  if (index < ops.first)
    ops.first += by;
  else if (index < ops.first + ops.count)
    ops.count += by;
  if (by < 0)
    std::erase_if(body.repeat.growths, [&](const Repeat::Growth& growth) {
      return growth.stream == static_cast<int>(stream) && growth.index == index;
    });
  for (Repeat::Growth& growth : body.repeat.growths)
    if (growth.stream == static_cast<int>(stream) && growth.index >= index) growth.index += by;
}

bool is_silent(const Op& op) { return op.is(ops::print) || op.is(ops::barrier); }

bool drop(Job& job, Random& random, Mutant& mutant) {
  Place at;
  if (!pick(job, random, at, [](const Program&, const Op&) { return true; })) return false;
  mutant.what = "drops " + name_of(job, at);
  mutant.site = op_of(job, at).site;
  mutant.without_effect = is_silent(op_of(job, at));
  std::vector<Op>& ops = ops_of(job, at);
  // Ops that waited for this op now wait for its predecessor, and its successor inherits its waits.
  const int index = static_cast<int>(at.index);
  if (at.index + 1 < ops.size()) {
    std::vector<Edge>& waits = ops[at.index + 1].waits;
    waits.insert(waits.end(), ops[at.index].waits.begin(), ops[at.index].waits.end());
  }
  ops.erase(ops.begin() + index);
  move_repeat(step_of(job, at), at.stream, index, -1);
  renumber(step_of(job, at), at.stream, [&](int i) { return i >= index ? i - 1 : i; });
  return true;
}

bool twice(Job& job, Random& random, Mutant& mutant) {
  Place at;
  if (!pick(job, random, at, [](const Program&, const Op&) { return true; })) return false;
  mutant.what = "doubles " + name_of(job, at);
  mutant.site = op_of(job, at).site;
  mutant.without_effect = is_silent(op_of(job, at));
  std::vector<Op>& ops = ops_of(job, at);
  const int index = static_cast<int>(at.index);
  renumber(step_of(job, at), at.stream, [&](int i) { return i >= index ? i + 1 : i; });
  Op copy = ops[at.index];
  copy.waits.clear();
  move_repeat(step_of(job, at), at.stream, index, 1);
  ops.insert(ops.begin() + index + 1, std::move(copy));
  return true;
}

bool swap(Job& job, Random& random, Mutant& mutant) {
  Place at;
  if (!pick(job, random, at, [](const Program&, const Op&) { return true; })) return false;
  std::vector<Op>& ops = ops_of(job, at);
  if (ops.size() < 2) return false;
  size_t a = at.index, b = random() % 2 == 0 ? (a + 1) % ops.size() : below(random, ops.size());
  if (a == b) return false;
  mutant.what = fmt::format("swaps {} and {}", name_of(job, at), name_of(job, {at.cls, at.stream, b}));
  mutant.site = ops[a].site;
  std::swap(ops[a], ops[b]);
  if (random() % 2 == 0) {  // edges follow the ops, or remain with their positions
    const int x = static_cast<int>(a), y = static_cast<int>(b);
    renumber(step_of(job, at), at.stream, [&](int i) { return i == x ? y : i == y ? x : i; });
  } else {
    std::swap(ops[a].waits, ops[b].waits);
  }
  return true;
}

bool axis(Job& job, Random& random, Mutant& mutant) {
  Place at;
  if (!pick(job, random, at, [](const Program&, const Op& op) { return op.communicates(); })) return false;
  Op& op = op_of(job, at);
  std::vector<std::string> others = {kWorld};
  for (const Axis& one : job.classes[at.cls].mesh.axes())
    if (one.name != op.axis) others.push_back(one.name);
  const std::string to = others[below(random, others.size())];
  mutant.what = fmt::format("moves {} from {} to {}", name_of(job, at), op.axis, to);
  mutant.site = op.site;
  const Mesh& mesh = job.classes[at.cls].mesh;
  mutant.without_effect = mesh.size(op.axis) == mesh.size(to) && mesh.group(op.axis, 0) == mesh.group(to, 0);
  op.axis = to;
  return true;
}

bool edge(Job& job, Random& random, Mutant& mutant) {
  Place at;
  if (!pick(job, random, at, [](const Program&, const Op& op) { return !op.waits.empty(); })) return false;
  Op& op = op_of(job, at);
  const Order before(step_of(job, at));
  const size_t which = below(random, op.waits.size());
  const Edge gone = op.waits[which];
  mutant.what =
      fmt::format("{} no longer waits for {}{}", name_of(job, at),
                  name_of(job, {at.cls, static_cast<size_t>(gone.stream.index()), static_cast<size_t>(gone.index)}),
                  gone.back ? " of the step before" : "");
  mutant.site = op.site;
  op.waits.erase(op.waits.begin() + static_cast<std::ptrdiff_t>(which));
  const Order after(step_of(job, at));
  const OpRef self{static_cast<int>(at.stream), static_cast<int>(at.index)};
  // Other edges imply it: within the step directly, and across steps through the first op of the stream that it names.
  mutant.without_effect =
      gone.back == 0 ? after.before({gone.stream, gone.index}, self) : after.before({gone.stream, 0}, self);
  return true;
}

struct Life {
  int first = -1, last = -1;
};

Table<BufferId, Life> lives_of(const Program& program) {
  Table<BufferId, Life> lives(program.buffers.size());
  const Order order(program.step());
  int position = 0;
  for (const OpRef ref : order.sequence()) {
    const Op& op = program.step().streams[ref.stream].ops[ref.index];
    for (const std::vector<TensorId>* ids : {&op.reads, &op.writes}) {
      for (const TensorId id : *ids) {
        Life& life = lives[program.tensors[id].buffer];
        if (life.first < 0) life.first = position;
        life.last = position;
      }
    }
    position++;
  }
  return lives;
}

bool lifetime(Job& job, Random& random, Mutant& mutant) {
  const size_t c = below(random, job.classes.size());
  Program& program = job.classes[c];
  const Table<BufferId, Life> lives = lives_of(program);
  for (int attempt = 0; attempt < 200; attempt++) {
    const size_t a = below(random, lives.size()), b = below(random, lives.size());
    Buffer &dying = program.buffers[a], &next = program.buffers[b];
    // `next` begins while `dying` still has a reader.
    if (a == b || dying.persistent || next.persistent || lives[a].first < 0 || lives[b].first < 0) continue;
    if (lives[b].first <= lives[a].first || lives[b].first > lives[a].last) continue;
    if (dying.offset + next.bytes > program.arena_bytes) continue;
    next.offset = dying.offset;
    mutant.what = fmt::format("'{}' dies early: '{}' takes its bytes", dying.name, next.name);
    mutant.site = dying.site;
    return true;
  }
  return false;
}

bool count(Job& job, Random& random, Mutant& mutant) {
  Place at;
  const auto has_operands = [](const Program&, const Op& op) { return !op.reads.empty() || !op.writes.empty(); };
  if (!pick(job, random, at, has_operands)) return false;
  Program& program = job.classes[at.cls];
  Op& op = op_of(job, at);
  std::vector<TensorId*> operands;
  for (TensorId& id : op.reads) operands.push_back(&id);
  for (TensorId& id : op.writes) operands.push_back(&id);
  if (op.attrs.has("workspace")) operands.pop_back();
  if (operands.empty()) return false;
  const TensorId from = *operands[below(random, operands.size())];
  Tensor shorter = program.tensors[from];
  std::vector<size_t> dims;
  for (size_t d = 0; d < shorter.shape.size(); d++)
    if (shorter.shape[d] > 1) dims.push_back(d);
  if (dims.empty()) return false;
  int64_t& dim = shorter.shape[dims[below(random, dims.size())]];
  dim = random() % 2 == 0 ? dim - 1 : dim / 2;
  mutant.what = fmt::format("{} takes {} of '{}', not {}", name_of(job, at), shape_text(shorter.shape), shorter.name,
                            shape_text(program.tensors[from].shape));
  mutant.site = op.site;
  const int to = static_cast<int>(program.tensors.size());
  program.tensors.push_back(std::move(shorter));
  for (TensorId* id : operands)
    if (*id == from) *id = to;
  return true;
}

bool reduction(Job& job, Random& random, Mutant& mutant) {
  Place at;
  if (!pick(job, random, at,
            [](const Program&, const Op& op) { return op.is(ops::all_reduce) || op.is(ops::reduce_scatter); }))
    return false;
  Op& op = op_of(job, at);
  const std::string from = op.attrs.text("op", "sum");
  std::vector<std::string> others = {"sum", "avg", "max"};
  std::erase(others, from);
  const std::string to = others[below(random, others.size())];
  mutant.what = fmt::format("{} reduces by {}, not {}", name_of(job, at), to, from);
  mutant.site = op.site;
  op.attrs.set("op", to);
  return true;
}

bool heads(Job& job, Random& random, Mutant& mutant) {
  Place at;
  const auto of_a_part = [](const Program&, const Op& op) { return op.attrs.has("of_heads"); };
  if (!pick(job, random, at, of_a_part)) return false;
  Op& op = op_of(job, at);
  const char* const names[] = {"heads", "kv_heads", "of_heads"};
  const std::string name = names[below(random, 3)];
  const int64_t from = op.attrs.integer(name, op.attrs.integer("heads"));
  const int64_t to = random() % 2 == 0 ? 2 * from : std::max<int64_t>(1, from / 2);
  if (to == from) return false;
  mutant.what = fmt::format("{} counts {} {}, not {}", name_of(job, at), to, name, from);
  mutant.site = op.site;
  mutant.without_effect = name == "of_heads";
  op.attrs.set(name, to);
  return true;
}

// Changes the cut of a sharded parameter.
bool blocks(Job& job, Random& random, Mutant& mutant) {
  Place at;
  const auto cuts = [](const Program&, const Op& op) { return op.attrs.has("split_blocks"); };
  if (!pick(job, random, at, cuts, kInitBody)) return false;
  Op& op = op_of(job, at);
  std::vector<int64_t> counts = op.attrs.integers("split_block_count"), all = op.attrs.integers("split_blocks");
  std::vector<size_t> split;
  for (size_t p = 0; p < counts.size(); p++)
    if (counts[p] > 0) split.push_back(p);
  const size_t piece = split[below(random, split.size())];
  const auto begin = all.begin() + std::accumulate(counts.begin(), counts.begin() + static_cast<int>(piece), 0);
  const auto end = begin + counts[piece];
  const int64_t whole = std::accumulate(begin, end, int64_t{0});
  std::vector<int64_t> now(begin, end);
  switch (random() % 3) {
    case 0:
      now = {whole};
      break;
    case 1:
      now.front() /= 2;
      now.push_back(whole - std::accumulate(now.begin(), now.end(), int64_t{0}));
      break;
    case 2:
      std::rotate(now.begin(), now.begin() + 1, now.end());
  }
  if (std::equal(begin, end, now.begin(), now.end())) return false;
  mutant.what = fmt::format("{} cuts {} into {}, not {}", name_of(job, at), whole, attr_text(now),
                            attr_text(std::vector<int64_t>(begin, end)));
  mutant.site = op.site;
  counts[piece] = std::ssize(now);
  all.insert(all.erase(begin, end), now.begin(), now.end());
  op.attrs.set("split_block_count", counts);
  op.attrs.set("split_blocks", all);
  return true;
}

// Changes frozen weights or buffers after an update.
bool frozen(Job& job, Random& random, Mutant& mutant) {
  Place at;
  if (!pick(job, random, at, [](const Program&, const Op& op) { return op.def->role == OpRole::optimizer; }))
    return false;
  const Program& program = job.classes[at.cls];
  std::vector<TensorId> weights;
  for (const TensorId id : program.tensors.ids())
    if (const Role role = program.buffers[program.tensors[id].buffer].role;
        role == Role::frozen || role == Role::buffer)
      weights.push_back(id);
  if (weights.empty()) return false;
  const TensorId changed = weights[below(random, weights.size())];
  Op op = make_op(ops::scale, {changed}, {changed}, Phase::step, op_of(job, at).site);
  op.attrs.set("factor", 0.5);
  mutant.what = fmt::format("halves '{}' after {}", program.tensors[changed].name, name_of(job, at));
  mutant.site = op.site;
  const int index = static_cast<int>(at.index);
  renumber(step_of(job, at), at.stream, [&](int i) { return i >= index ? i + 1 : i; });
  move_repeat(step_of(job, at), at.stream, index, 1);
  ops_of(job, at).insert(ops_of(job, at).begin() + index + 1, std::move(op));
  return true;
}

// Takes the shares of targets from a loss, or gives it those of another microbatch.
bool shares(Job& job, Random& random, Mutant& mutant) {
  Place at;
  const auto of_shares = [](const Program& program, TensorId id) {
    return program.tensors[id].name.find(".shares") != std::string::npos;
  };
  if (!pick(job, random, at, [&](const Program& program, const Op& op) {
        return op.def->loss != Loss::none && !op.reads.empty() && of_shares(program, op.reads.back());
      }))
    return false;
  const Program& program = job.classes[at.cls];
  Op& op = op_of(job, at);
  const Tensor& read = program.tensors[op.reads.back()];
  std::vector<TensorId> others;
  for (const TensorId id : program.tensors.ids()) {
    const Tensor& other = program.tensors[id];
    if (other.buffer == read.buffer && other.shape == read.shape && other.byte_offset != read.byte_offset)
      others.push_back(id);
  }
  mutant.site = op.site;
  if (others.empty() || random() % 2 == 0) {
    mutant.what = fmt::format("{} counts all targets", name_of(job, at));
    op.reads.pop_back();
  } else {
    op.reads.back() = others[below(random, others.size())];
    mutant.what = fmt::format("{} takes '{}'", name_of(job, at), program.tensors[op.reads.back()].name);
  }
  return true;
}

// Reads an operand with other strides, or from another element on.
bool view(Job& job, Random& random, Mutant& mutant) {
  Place at;
  if (!pick(job, random, at, [](const Program&, const Op& op) { return op.attrs.has("views"); })) return false;
  Op& op = op_of(job, at);
  const std::string from = op.attrs.text("views");
  std::vector<sdk::OperandView> views = *sdk::parse_operand_views(from);
  std::vector<sdk::ViewedDim>& dims = views[below(random, views.size())].dims;
  if (random() % 2 == 0) {
    std::swap(dims[below(random, dims.size())].to, dims[below(random, dims.size())].to);
  } else {
    sdk::ViewedDim& dim = dims[below(random, dims.size())];
    if (dim.to >= 0 && dim.size == 0) return false;
    dim.start += dim.start > 0 && random() % 2 == 0 ? -1 : 1;
  }
  const std::string to = sdk::operand_views_text(views);
  if (to == from) return false;
  mutant.what = fmt::format("{} reads {}, not {}", name_of(job, at), to, from);
  mutant.site = op.site;
  mutant.is_proven = true;
  op.attrs.set("views", to);
  return true;
}

// Attributes derived from placements; excludes the plan's own numbers and those that a derivative copies from its op.
// clang-format off
constexpr const char* kDerived[] = {
    "axis", "tokens_axis", "rows_axis", "split_axis", "chunks", "samples", "first", "width", "vocab", "positions",
    "tokens", "scale", "factor", "pieces", "dim", "capacity", "batch", "experts", "hop", "peer", "weights",
    "piece_weights", "piece_starts", "shard", "lr_factor", "weight_decay", "piece_lr_factors", "piece_weight_decays"
};
// clang-format on

bool attribute(Job& job, Random& random, Mutant& mutant) {
  Place at;
  std::string name;
  const auto has = [&](const Program&, const Op& op) {
    const bool own = op.is(ops::scale) && !op.attrs.has("axis");  // a number of the plan, and of its derivative
    return op.attrs.has(name) && !(own && name == "factor");
  };
  for (int attempt = 0; attempt < 20; attempt++) {
    name = kDerived[below(random, std::size(kDerived))];
    if (!pick(job, random, at, has)) continue;
    Op& op = op_of(job, at);
    const Attr from = op.attrs.values().at(name);
    Attr to = from;
    if (const auto* number = std::get_if<int64_t>(&from)) {
      const int64_t others[] = {*number + 1, *number - 1, 2 * *number, *number / 2};
      to = others[below(random, 4)];
    } else if (const auto* real = std::get_if<double>(&from)) {
      to = random() % 2 == 0 ? 2 * *real : *real / 2;
    } else if (const auto* text = std::get_if<std::string>(&from)) {
      std::vector<std::string> others = {""};
      for (const Axis& axis : job.classes[at.cls].mesh.axes()) others.push_back(axis.name);
      std::erase(others, *text);
      if (others.empty()) continue;
      to = others[below(random, others.size())];
    } else if (auto* reals = std::get_if<std::vector<double>>(&to)) {
      (*reals)[below(random, reals->size())] *= 2;
    } else if (auto* numbers = std::get_if<std::vector<int64_t>>(&to)) {
      (*numbers)[below(random, numbers->size())] += 1;
    }
    if (to == from) continue;
    mutant.what = fmt::format("{} has {} = {}, not {}", name_of(job, at), name, attr_text(to), attr_text(from));
    mutant.site = op.site;
    op.attrs.set(name, to);
    return true;
  }
  return false;
}

using Make = bool (*)(Job&, Random&, Mutant&);
constexpr std::array<std::pair<std::string_view, Make>, kKinds> kMakers = {{{"drop", drop},
                                                                            {"double", twice},
                                                                            {"swap", swap},
                                                                            {"axis", axis},
                                                                            {"edge", edge},
                                                                            {"lifetime", lifetime},
                                                                            {"count", count},
                                                                            {"reduction", reduction},
                                                                            {"heads", heads},
                                                                            {"blocks", blocks},
                                                                            {"attribute", attribute},
                                                                            {"repeat", repeat},
                                                                            {"frozen", frozen},
                                                                            {"shares", shares},
                                                                            {"view", view}}};

}  // namespace

std::string_view kind_name(Kind kind) { return kMakers[static_cast<size_t>(kind)].first; }

bool mutate(const Job& right, Kind kind, std::mt19937_64& random, Mutant& mutant) {
  mutant = {right, kind, "", {}, false};
  if (!kMakers[static_cast<size_t>(kind)].second(mutant.job, random, mutant)) return false;
  const bool of_ops = kind == Kind::drop || kind == Kind::twice || kind == Kind::swap;
  // The repeat was detected in the original ops.
  const bool repeats = mutant.job.classes.front().step().repeat.any();
  if (of_ops && !repeats && random() % 2 == 0) {
    bool anew = false;
    for (Program& program : mutant.job.classes)
      if (Order(program.step()).stuck().empty()) anew = derive_anew(program, program.step()) || anew;
    if (anew) resolve_put_offsets(mutant.job);
    if (anew) mutant.what += ", recorded so";
  }
  return true;
}

}  // namespace prun::mutate
