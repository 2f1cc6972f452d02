#include "prove/size_relations.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "ir/batch_inputs.h"
#include "ir/id_ranges.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr const char* kDimAttrs[] = {"experts", "tokens"};
constexpr const char* kHeadAttrs[] = {"heads", "kv_heads"};

int64_t last_dim(const Graph& graph, ValueId value) {
  const Shape& shape = graph.values[value].type.shape;
  return shape.empty() ? 1 : shape.back();
}

// Calls f(size) for each dim of an input or a parameter, except the batch, and for each block of a parameter.
template <class F>
void each_dim(Value& value, const F& f) {
  if (value.kind == ValueKind::activation) return;
  for (size_t d = value.kind == ValueKind::input ? 1 : 0; d < value.type.shape.size(); d++) f(value.type.shape[d]);
  for (int64_t& block : value.blocks) f(block);
}

bool rotates(const Node& node) { return node.op == &ops::rotary || node.op == &ops::rotary_at; }

template <class F>
void change(Attrs& attrs, const char* name, const F& f) {
  if (attrs.has(name)) attrs.set(name, f(attrs.integer(name)));
}

// Returns the columns that a reshape divides into heads, or joins again, if the dims before them remain; 0 = neither.
int64_t columns_of_heads(const Shape& x, const Shape& y) {
  const Shape &few = x.size() < y.size() ? x : y, &many = x.size() < y.size() ? y : x;
  if (few.empty() || many.size() != few.size() + 1) return 0;
  return std::equal(few.begin(), few.end() - 1, many.begin()) ? few.back() : 0;
}

// Disjoint sets of dims that shrink together.
class Partition {
 public:
  int64_t find(int64_t dim) {
    auto [at, fresh] = parent_.try_emplace(dim, dim);
    return at->second == dim ? dim : at->second = find(at->second);
  }
  void join(int64_t a, int64_t b) { parent_[find(a)] = find(b); }
  std::vector<int64_t> dims() const {
    std::vector<int64_t> all;
    for (const auto& [dim, parent] : parent_) all.push_back(dim);
    return all;
  }

 private:
  std::map<int64_t, int64_t> parent_;
};

class Reader {
 public:
  explicit Reader(const Graph& graph) : graph_(graph) {}

  SizeRelations run() {
    for (const Value& value : graph_.values) read(value);
    for (const Node& node : graph_.nodes) read(node);
    for (const Value& value : graph_.values)
      if (value.kind == ValueKind::input && computes(value.type.dtype) && !value.type.shape.empty())
        made_.images.insert(value.type.shape.begin() + 1, value.type.shape.end());
    std::map<int64_t, size_t> index;
    for (const int64_t dim : partition_.dims()) {
      const auto [at, fresh] = index.try_emplace(partition_.find(dim), made_.groups.size());
      if (fresh) made_.groups.emplace_back();
      made_.groups[at->second].dims[dim] = dim;
    }
    shared_.resize(made_.groups.size());
    for (const Node& node : graph_.nodes) read_heads(node);
    for (size_t g = 0; g < made_.groups.size(); g++)
      if (shared_[g].size() == 1) share_less(made_.groups[g], *shared_[g].begin());
    return std::move(made_);
  }

 private:
  void read(Value value) {
    each_dim(value, [&](int64_t dim) { partition_.find(dim); });
    // The blocks split a weight's last dim, or the first one of a transposed weight.
    const int64_t together = std::accumulate(value.blocks.begin(), value.blocks.end(), int64_t{0});
    const Shape& shape = value.type.shape;
    if (std::find(shape.begin(), shape.end(), together) == shape.end()) return;
    for (const int64_t block : value.blocks) partition_.join(block, together);
  }

  void read(const Node& node) {
    for (const char* name : kDimAttrs)
      if (node.attrs.has(name)) partition_.find(node.attrs.integer(name));
    if (node.op == &ops::attention)
      partition_.join(last_dim(graph_, node.inputs[0]), last_dim(graph_, node.outputs[0]));
    if (node.op == &ops::attend)
      for (const ValueId columns : {node.inputs[1], node.inputs[2], node.outputs[0]})
        partition_.join(last_dim(graph_, node.inputs[0]), last_dim(graph_, columns));
    if (node.op == &ops::embedding || node.op == &ops::positions) read_table(node);
    if (node.op == &ops::cross_entropy) made_.vocabularies.insert(last_dim(graph_, node.inputs[0]));
    if (node.op == &ops::conv || node.op == &ops::conv_transpose) read_kernel(node);
    if (node.op == &ops::route) {
      const int64_t experts = last_dim(graph_, node.inputs[0]), choices = node.attrs.integer("k", 1);
      int64_t& least = made_.least[experts];
      least = std::max(least, std::min(experts, choices + 1));
    }
  }

  void read_table(const Node& node) {
    const auto shape = [&](size_t input) { return graph_.values[node.inputs[input]].type.shape; };
    if (node.op == &ops::embedding) made_.vocabularies.insert(shape(1).front());
    const Value& ids = graph_.values[node.inputs[0]];
    if (ids.kind == ValueKind::input && ids.name == kPositions) made_.rows.insert({shape(1).front(), shape(0).at(1)});
    const size_t table = node.op == &ops::embedding ? 2 : 1;
    if (node.inputs.size() <= table) return;
    const Shape tokens = shape(0);
    made_.rows.insert({shape(table).front(), tokens.size() > 1 ? tokens[1] : tokens.back()});
  }

  void read_kernel(const Node& node) {
    const Shape& weight = graph_.values[node.inputs[1]].type.shape;
    made_.kernels.insert(weight.begin() + 2, weight.end());
    // Channels of groups keep their numbers; of a depthwise convolution they shrink together.
    if (node.attrs.integer("groups", 1) > 1 && weight[1] > 1) made_.kernels.insert(weight.begin(), weight.begin() + 2);
  }

  // A reshape to heads limits the sizes as an attention does.
  void read_reshape(const Node& node) {
    const Shape &x = graph_.values[node.inputs[0]].type.shape, &y = graph_.values[node.outputs[0]].type.shape;
    const std::optional<size_t> at = made_.group_of(columns_of_heads(x, y));
    if (!at) return;
    const Shape& many = x.size() < y.size() ? y : x;
    made_.groups[*at].heads[many[many.size() - 2]] = many[many.size() - 2];
    made_.groups[*at].head_sizes.insert(many.back());
  }

  void read_heads(const Node& node) {
    if (node.op == &ops::reshape) read_reshape(node);
    if (node.op == &ops::attend) read_attend(node);
    if (node.op != &ops::attention && !rotates(node)) return;
    const int64_t columns = last_dim(graph_, node.inputs[0]);
    const std::optional<size_t> at = made_.group_of(columns);
    if (!at) return;
    SizeGroup& group = made_.groups[*at];
    group.rotates = group.rotates || rotates(node);
    for (const char* name : kHeadAttrs)
      if (const int64_t heads = node.attrs.integer(name); heads > 0) group.heads[heads] = heads;
    if (rotates(node)) {
      group.head_sizes.insert(node.attrs.integer("size"));
      return;
    }
    const int64_t heads = node.attrs.integer("heads", 1), kv_heads = node.attrs.integer("kv_heads", heads);
    group.head_sizes.insert(columns / (heads + 2 * kv_heads));
    shared_[*at].insert({heads, kv_heads});
  }

  void read_attend(const Node& node) {
    const std::optional<size_t> at = made_.group_of(last_dim(graph_, node.inputs[0]));
    if (!at) return;
    const int64_t heads = node.attrs.integer("heads", 1), kv_heads = node.attrs.integer("kv_heads", heads);
    for (const int64_t count : {heads, kv_heads}) made_.groups[*at].heads[count] = count;
    made_.groups[*at].head_sizes.insert(last_dim(graph_, node.inputs[0]) / heads);
    made_.groups[*at].head_sizes.insert(last_dim(graph_, node.outputs[0]) / heads);
    shared_[*at].insert({heads, kv_heads});
  }

  // Reduces the query heads per key head to at most three if every size of the group is a sum of query heads and at
  // most two times the key heads. With three query heads per key head such sums remain distinct.
  static void share_less(SizeGroup& group, const std::pair<int64_t, int64_t>& shared) {
    const int64_t heads = shared.first, kv_heads = shared.second;
    constexpr int64_t kMostSharing = 3;
    if (heads / kv_heads <= kMostSharing || group.head_sizes.size() != 1) return;
    const int64_t head_size = *group.head_sizes.begin();
    const auto fewer = [&](int64_t count) -> int64_t {
      const int64_t queries = count / heads, rest = count % heads;
      if (rest % kv_heads != 0 || rest / kv_heads > 2) return 0;
      return queries * kMostSharing * kv_heads + rest;
    };
    SizeGroup made = group;
    for (auto& [real, base] : made.heads)
      if ((base = fewer(real)) == 0) return;
    for (auto& [real, base] : made.dims)
      if (real % head_size != 0 || (base = fewer(real / head_size) * head_size) == 0) return;
    group = std::move(made);
  }

  const Graph& graph_;
  Partition partition_;
  SizeRelations made_;
  std::vector<std::set<std::pair<int64_t, int64_t>>> shared_;  // by group: query heads, key heads
};

int64_t small_of(const std::map<int64_t, int64_t>& sizes, int64_t real) {
  const auto found = sizes.find(real);
  return found == sizes.end() ? real : found->second;
}

// Replaces the sizes of a reshape or an expansion, except the samples.
void resize_view(const Graph& graph, Node& node, const SizeRelations& relations, const SmallSizes& sizes) {
  const Shape &x = graph.values[node.inputs[0]].type.shape, &y = graph.values[node.outputs[0]].type.shape;
  Shape dims = y;
  for (size_t i = 1; i < dims.size(); i++) dims[i] = small_of(sizes.dims, y[i]);
  const std::optional<size_t> group = relations.group_of(columns_of_heads(x, y));
  if (node.op == &ops::reshape && group && x.size() < y.size()) {
    dims[y.size() - 2] = small_of(sizes.heads[*group], y[y.size() - 2]);
    dims.back() = small_of(sizes.head_sizes[*group], y.back());
  }
  node.attrs.set("dims", dims);
}

}  // namespace

std::optional<size_t> SizeRelations::group_of(int64_t dim) const {
  for (size_t g = 0; g < groups.size(); g++)
    if (groups[g].dims.contains(dim)) return g;
  return std::nullopt;
}

SizeRelations size_relations(const Graph& graph) { return Reader(graph).run(); }

void resize(Graph& graph, const SizeRelations& relations, const SmallSizes& sizes) {
  for (Node& node : graph.nodes) {
    for (const char* name : kDimAttrs)
      change(node.attrs, name, [&](int64_t size) { return small_of(sizes.dims, size); });
    if (node.op == &ops::reshape || node.op == &ops::expand) resize_view(graph, node, relations, sizes);
    const bool slides = node.op == &ops::conv || node.op == &ops::conv_transpose;
    if (slides && graph.values[node.inputs[1]].type.shape[1] == 1)
      change(node.attrs, "groups", [&](int64_t groups) { return small_of(sizes.dims, groups); });
    if (node.op != &ops::attention && node.op != &ops::attend && !rotates(node)) continue;
    const std::optional<size_t> group = relations.group_of(last_dim(graph, node.inputs[0]));
    if (!group) continue;
    for (const char* name : kHeadAttrs)
      change(node.attrs, name, [&](int64_t heads) { return small_of(sizes.heads[*group], heads); });
    const int64_t whole = node.attrs.integer("size");
    change(node.attrs, "size", [&](int64_t size) { return small_of(sizes.head_sizes[*group], size); });
    const int64_t small = node.attrs.integer("size");
    change(node.attrs, "part", [&](int64_t part) { return std::max<int64_t>(2, part * small / whole / 2 * 2); });
    if (node.attrs.has("factors")) {  // of each pair
      std::vector<double> factors = node.attrs.numbers("factors");
      factors.resize(node.attrs.integer("part", small) / 2);
      node.attrs.set("factors", std::move(factors));
    }
  }
  for (Value& value : graph.values) each_dim(value, [&](int64_t& dim) { dim = small_of(sizes.dims, dim); });
  infer_types(graph);
  check_computed_ids(graph);
}

void infer_types(Graph& graph) {
  for (const Node& node : graph.nodes) {
    std::vector<TensorType> inputs;
    for (ValueId input : node.inputs) inputs.push_back(graph.values[input].type);
    const std::vector<TensorType> types = node.op->infer(inputs, node.attrs);
    for (size_t i = 0; i < types.size(); i++) graph.values[node.outputs[i]].type = types[i];
  }
}

}  // namespace prun
