#include "prove/small_dims.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "ir/ops.h"

namespace prun {
namespace {

// What a number counts. Equal numbers of a kind become equal ones; a model's 16 heads and its 16 tokens need not.
enum Kind { kDim, kHead, kHeads };
constexpr int64_t kLeast[] = {4, 2, 2};  // of what is made smaller

struct SizeAttr {
  const char* name;
  Kind kind;
};
constexpr SizeAttr kSizeAttrs[] = {
    {"experts", kDim}, {"tokens", kDim}, {"size", kHead}, {"heads", kHeads}, {"kv_heads", kHeads}};

using Sizes = std::map<std::pair<Kind, int64_t>, int64_t>;  // real -> small

int64_t small_of(const Sizes& sizes, Kind kind, int64_t real) {
  const auto found = sizes.find({kind, real});
  return found == sizes.end() ? real : found->second;
}

// Calls f(kind, size) for each size that the model names; batches are not among them.
template <class F>
void each_size(Graph& graph, const F& f) {
  for (Value& value : graph.values) {
    if (value.kind == ValueKind::activation) continue;
    for (size_t d = value.kind == ValueKind::input ? 1 : 0; d < value.type.shape.size(); d++)
      f(kDim, value.type.shape[d]);
    for (int64_t& block : value.blocks) f(kDim, block);
  }
  for (Node& node : graph.nodes)
    for (const SizeAttr& attr : kSizeAttrs) {
      if (!node.attrs.has(attr.name)) continue;
      int64_t size = node.attrs.integer(attr.name);
      f(attr.kind, size);
      node.attrs.set(attr.name, size);
    }
}

// Blocks side by side are a dim together.
bool blocks_join(const Value& value) {
  const int64_t together = std::accumulate(value.blocks.begin(), value.blocks.end(), int64_t{0});
  const Shape& shape = value.type.shape;
  return value.blocks.empty() || std::find(shape.begin(), shape.end(), together) != shape.end();
}

bool fits(const Graph& graph, const Sizes& sizes) {
  Graph tried = graph;
  each_size(tried, [&](Kind kind, int64_t& size) { size = small_of(sizes, kind, size); });
  if (!std::all_of(tried.values.begin(), tried.values.end(), blocks_join)) return false;
  try {
    infer_types(tried);
  } catch (const Error&) {
    return false;
  }
  return true;
}

// Axes that split dims, those of weights, activations and tokens, and into how many pieces a rank: two chunks of
// tokens.
std::map<std::string, int> splitting_axes(const Plan& plan) {
  std::map<std::string, int> pieces;
  for (const Strategy& strategy : plan.strategies) {
    for (const StrategyUnit& unit : strategy.units) {
      for (const LayerPlacement& placement : unit.layers) pieces[placement.axis] = 1;
      for (const LayerPlacement& placement : unit.activations) pieces[placement.axis] = 1;
    }
    if (strategy.splits != Splits::tokens) continue;
    for (const std::string& axis : strategy.axes) pieces[axis] = 2;
  }
  return pieces;
}

class DimShrinker {
 public:
  DimShrinker(const Plan& real, const Plan& small) : graph_(small.graph) {
    Graph copy = graph_;
    each_size(copy, [&](Kind kind, int64_t& size) { sizes_[{kind, size}] = size; });
    for (const auto& [axis, pieces] : splitting_axes(small)) {
      if (small.mesh.size(axis) == 1) continue;
      divisors_.emplace_back(real.mesh.size(axis), small.mesh.size(axis));
      divisors_.emplace_back(pieces * real.mesh.size(axis), pieces * small.mesh.size(axis));
    }
  }

  Sizes run() {
    // The least first, with all its multiples: a number that one dim takes for itself is one that no other can come to.
    while (each_base<std::less<>>([this](int64_t base) { return shrink_multiples(base); })) {
    }
    while (each_base<std::greater<>>([this](int64_t base) { return shrink_multiples(base) || shrink_alone(base); })) {
    }
    return sizes_;
  }

 private:
  template <class Order, class F>
  bool each_base(const F& f) {
    std::set<int64_t, Order> bases;
    for (const auto& [real, small] : sizes_)
      if (real.first == kDim) bases.insert(small);
    bool changed = false;
    for (const int64_t base : bases) changed = f(base) || changed;
    return changed;
  }

  // All multiples of `base` by one factor, the largest first, alone, with the size of heads or with their number.
  bool shrink_multiples(int64_t base) {
    for (int64_t small = 1; small < base; small++) {
      if (base % small != 0) continue;
      const int64_t factor = base / small;
      for (const Kind along : {kDim, kHead, kHeads}) {
        const auto smaller = [&](Kind kind, int64_t size) -> int64_t {
          if (kind == kDim) return size % base == 0 ? size / factor : size;
          return kind == along ? (size % factor == 0 ? size / factor : 0) : size;
        };
        if (accept(smaller)) return true;
      }
    }
    return false;
  }

  // Dims that equal it, to a number of their own.
  bool shrink_alone(int64_t base) {
    for (int64_t small = kLeast[kDim]; small < std::min<int64_t>(base, 4 * kLeast[kDim]); small++)
      if (accept([&](Kind kind, int64_t size) { return kind == kDim && size == base ? small : size; })) return true;
    return false;
  }

  template <class F>
  bool accept(const F& smaller) {
    Sizes tried = sizes_;
    std::set<int64_t> taken;
    bool changed = false;
    for (auto& [real, small] : tried) {
      const auto& [kind, size] = real;
      const int64_t before = std::exchange(small, smaller(kind, small));
      changed = changed || small != before;
      if (small != before && small < kLeast[kind]) return false;
      if (kind == kDim && !taken.insert(small).second) return false;
      for (const auto& [all, few] : divisors_)
        if (kind != kHead && (size % all == 0) != (small % few == 0)) return false;
    }
    if (!changed || !fits(graph_, tried)) return false;
    sizes_ = std::move(tried);
    return true;
  }

  const Graph& graph_;
  Sizes sizes_;
  std::vector<std::pair<int64_t, int64_t>> divisors_;  // what an axis divides into, really and now
};

void apply(Plan& plan, const Sizes& sizes) {
  each_size(plan.graph, [&](Kind kind, int64_t& size) { size = small_of(sizes, kind, size); });
  infer_types(plan.graph);
  // Data may have fewer tokens than the tables and logits that take them.
  const int64_t vocab = plan.data.vocab;
  for (const auto& [real, few] : sizes)
    if (real.first == kDim && vocab > 0 && real.second >= vocab)
      plan.data.vocab = std::min(plan.data.vocab, std::max<int64_t>(1, vocab * few / real.second));
  plan.data.context = small_of(sizes, kDim, plan.data.context);
}

}  // namespace

void infer_types(Graph& graph) {
  for (const Node& node : graph.nodes) {
    std::vector<TensorType> inputs;
    for (ValueId input : node.inputs) inputs.push_back(graph.values[input].type);
    const std::vector<TensorType> types = node.op->infer(inputs, node.attrs);
    for (size_t i = 0; i < types.size(); i++) graph.values[node.outputs[i]].type = types[i];
  }
}

void shrink_dims(const Plan& real, Plan& small, const std::vector<Plan*>& others) {
  const Sizes sizes = DimShrinker(real, small).run();
  apply(small, sizes);
  for (Plan* other : others) apply(*other, sizes);
}

}  // namespace prun
