// Distribution rules of views over an axis that splits weights: the dim that the axis splits moves with the view, and
// the sizes in its attributes become a rank's. A view across the ranks' parts is an error, because a reduction or a
// gather there is rarely intended; only tokens of sequence parallelism are gathered.
#include <fmt/format.h>

#include <algorithm>

#include "compile/distributor.h"
#include "compile/view_dims.h"
#include "ir/ops.h"
#include "ir/ops/rules.h"
#include "ir/state.h"

namespace prun {
namespace {

[[noreturn]] void mixes(const Distributor& d, const Node& node, int dim, const Shape& x, const Shape& y) {
  std::string why;
  if (node.op == &ops::reshape) why = fmt::format(": no dim of {} has {} equal parts of it", shape_text(y), d.ranks());
  throw plan_error(
      fmt::format("{}, which axis '{}' of {} ranks splits{}", mixing_text(node, dim, x), d.axis(), d.ranks(), why),
      node.site);
}

// The shapes of an op before the axis splits it.
Shape whole_of(const Distributor& d, ValueId value) {
  Shape shape = d.type(value).shape;
  const Placement placement = d.placement(value);
  if (placement.kind == PlacementKind::shard) shape[placement.dim] *= d.ranks();
  return shape;
}

// Returns the blocks of the columns of a value, each of which was split by itself; one block if they were split evenly.
std::vector<int64_t> blocks_of(const Distributor& d, ValueId value) {
  const std::vector<Node>& nodes = d.whole_nodes();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (node->outputs.empty() || node->outputs[0] != value) continue;
    if (node->op == &ops::linear && !d.graph().values[node->inputs[1]].blocks.empty())
      return d.graph().values[node->inputs[1]].blocks;
    if (node->op == &ops::concat && node->attrs.integer("dim") + 1 == std::ssize(d.type(value).shape)) {
      std::vector<int64_t> blocks;
      for (const ValueId input : node->inputs)
        for (const int64_t block : blocks_of(d, input)) blocks.push_back(block);
      return blocks;
    }
    if (node->op->distribution != Distribution::elementwise && node->op != &ops::rotary && node->op != &ops::rotary_at)
      break;
    value = node->inputs[0];
  }
  return {whole_of(d, value).back()};
}
bool has_blocks(const Distributor& d, ValueId value) { return blocks_of(d, value).size() > 1; }

// Returns whether a slice of the columns, or a concatenation along them, keeps each rank's part of every block apart.
// The ranks' parts of a concatenation are then parts of several blocks, which only these readers understand.
bool keeps_blocks(const Distributor& d, const Node& node, int dim) {
  if (dim + 1 != std::ssize(d.type(node.inputs[0]).shape) || node.attrs.integer("dim") != dim) return false;
  if (node.op == &ops::concat)
    return std::ranges::all_of(d.whole_nodes(), [&](const Node& reader) {
      constexpr const OpDef* kReaders[] = {&ops::attention, &ops::ring_attention, &ops::cached_attention,
                                           &ops::rotary,    &ops::rotary_at,      &ops::slice};
      const bool knows = std::ranges::find(kReaders, reader.op) != std::end(kReaders);
      return knows || std::ranges::find(reader.inputs, node.outputs[0]) == reader.inputs.end();
    });
  if (node.op != &ops::slice) return false;
  int64_t start = 0;
  const int64_t first = node.attrs.integer("start"), end = first + node.attrs.integer("size");
  bool begins = false, ends = false;
  for (const int64_t block : blocks_of(d, node.inputs[0])) {
    if (block % d.ranks() != 0) return false;
    begins = begins || start == first;
    start += block;
    ends = ends || start == end;
  }
  return begins && ends;
}

// Returns the dim of y that a reshape leaves as it is, if the ranks' parts of it differ in size because they do not
// divide it; x is a rank's shape.
std::optional<int> uneven(const Distributor& d, const Shape& x, int dim, const Shape& y) {
  const Shape tail(x.begin() + dim + 1, x.end());
  const int to = static_cast<int>(std::ssize(y)) - static_cast<int>(std::ssize(tail)) - 1;
  if (to < 0 || y[to] % d.ranks() == 0 || x[dim] != (y[to] + d.ranks() - 1) / d.ranks()) return std::nullopt;
  const bool same = std::equal(tail.begin(), tail.end(), y.begin() + to + 1, y.end()) &&
                    element_count({x.begin(), x.begin() + dim}) == element_count({y.begin(), y.begin() + to});
  return same ? std::optional(to) : std::nullopt;
}

// A concatenation of values that are split along another dim with whole ones, of which each rank takes its part.
void concat_parts(Distributor& d, const Node& node) {
  const auto is_split = [&](ValueId input) { return d.placement(input) != Placement{}; };
  const Placement placement = d.placement(*std::ranges::find_if(node.inputs, is_split));
  const bool alike = std::ranges::all_of(
      node.inputs, [&](ValueId input) { return !is_split(input) || d.placement(input) == placement; });
  Node copy = node;
  const bool apart = alike && placement.dim != node.attrs.integer("dim");
  for (ValueId& input : copy.inputs) input = apart ? d.piece_of(input, placement.dim) : d.whole(input);
  d.keep(std::move(copy), apart ? placement : Placement{});
}

}  // namespace

void view(Distributor& d, const Node& node) {
  Node copy = node;
  const Shape y = d.whole_type(node.outputs[0]).shape;
  bool split = false, alike = true, tokens = false;
  for (size_t i = 0; i < node.inputs.size(); i++) {
    const ValueId input = node.inputs[i];
    if (const int dim = d.split_dim(input); dim >= 0) {
      Shape weight = d.type(input).shape;
      weight[dim] *= d.ranks();
      mixes(d, node, dim, weight, y);
    }
    split = split || d.placement(input) != Placement{};
    alike = alike && d.placement(input) == d.placement(node.inputs[0]);
    tokens = tokens || d.is_tokens(input);
  }
  if (!split) return d.keep(std::move(copy), {});
  if (node.op == &ops::concat && !alike && !tokens) return concat_parts(d, node);
  if (node.op == &ops::gather_rows && d.placement(node.inputs[1]) == Placement{} &&
      d.placement(node.inputs[0]).dim >= std::ssize(d.type(node.inputs[1]).shape))
    return d.keep(std::move(copy), d.placement(node.inputs[0]));  // the ranks have columns of the rows
  const Shape x = whole_of(d, node.inputs[0]);
  const int dim = d.placement(node.inputs[0]).dim;
  std::optional<int> to;
  const std::optional<int> kept =
      alike && node.op == &ops::reshape ? uneven(d, d.type(node.inputs[0]).shape, dim, y) : std::nullopt;
  if (alike && node.op != &ops::gather_rows) to = dim_after(node, x, dim, y, false);
  const bool columns = dim + 1 == std::ssize(x);
  if (to && node.op == &ops::reshape && y[*to] != x[dim] && columns && has_blocks(d, node.inputs[0])) to = std::nullopt;
  if (to && y[*to] % d.ranks() != 0) to = std::nullopt;
  if (to && node.op == &ops::reshape &&
      element_count({x.begin() + dim + 1, x.end()}) * x[dim] != element_count({y.begin() + *to, y.end()}))
    to = std::nullopt;
  if (kept) to = kept;
  if (!to && alike && keeps_blocks(d, node, dim)) {
    for (const char* name : {"start", "size"})
      if (node.attrs.has(name)) copy.attrs.set(name, node.attrs.integer(name) / d.ranks());
    return d.keep(std::move(copy), shard_of(dim));
  }
  if (!to) {
    if (!tokens) mixes(d, node, dim, x, y);
    for (ValueId& input : copy.inputs) input = d.whole(input);
    return d.keep(std::move(copy), {});
  }
  if (copy.attrs.has("dims")) {
    Shape dims = ops::sizes_of(node.attrs, "dims");
    dims[*to] = run_of(dims[*to], d.ranks(), 1);
    copy.attrs.set("dims", dims);
  }
  if (node.op == &ops::reshape) {
    copy.attrs.set("axis", d.axis());
    copy.attrs.set("from", int64_t{dim});
    copy.attrs.set("to", int64_t{*to});
  }
  d.keep(std::move(copy), shard_of(*to));
}

}  // namespace prun
