#include "prove/small_dims.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr int64_t kLeast = 4;  // of what is made smaller
// Attributes that are sizes of tensors; heads and experts are, too, but count what the mesh divides.
constexpr const char* kSizes[] = {"size", "tokens"};

using Sizes = std::map<int64_t, int64_t>;  // real -> small

int64_t small_of(const Sizes& sizes, int64_t real) {
  const auto found = sizes.find(real);
  return found == sizes.end() ? real : found->second;
}

// Calls f(size, least) for each size that the model names; batches are not among them.
template <class F>
void each_size(Graph& graph, const F& f) {
  for (Value& value : graph.values) {
    if (value.kind == ValueKind::activation) continue;
    for (size_t d = value.kind == ValueKind::input ? 1 : 0; d < value.type.shape.size(); d++)
      f(value.type.shape[d], kLeast);
    for (int64_t& block : value.blocks) f(block, kLeast);
  }
  for (Node& node : graph.nodes)
    for (const char* name : kSizes) {
      if (!node.attrs.has(name)) continue;
      int64_t size = node.attrs.integer(name);
      f(size, 2);
      node.attrs.set(name, size);
    }
}

bool fits(const Graph& graph, const Sizes& sizes) {
  Graph tried = graph;
  each_size(tried, [&](int64_t& size, int64_t) { size = small_of(sizes, size); });
  try {
    infer_types(tried);
  } catch (const Error&) {
    return false;
  }
  return true;
}

class DimShrinker {
 public:
  DimShrinker(const Plan& real, const Plan& small) : graph_(small.graph) {
    Graph copy = graph_;
    each_size(copy, [&](int64_t& size, int64_t least) {
      sizes_[size] = size;
      int64_t& most = least_.try_emplace(size, 0).first->second;
      most = std::max(most, least);
    });
    for (const Axis& axis : real.mesh.axes())
      if (small.mesh.size(axis.name) > 1)
        for (const int chunks : {1, 2}) divisors_.emplace_back(chunks * axis.size, chunks * small.mesh.size(axis.name));
  }

  Sizes run() {
    for (bool changed = true; changed;) {
      changed = false;
      std::vector<int64_t> bases;
      for (const auto& [real, small] : sizes_) bases.push_back(small);
      std::sort(bases.rbegin(), bases.rend());
      for (const int64_t base : bases) changed = shrink(base) || changed;
    }
    return sizes_;
  }

 private:
  // All multiples of `base` by one factor, the largest first; else those that equal it, to a number of their own.
  bool shrink(int64_t base) {
    for (int64_t small = 1; small < base; small++)
      if (base % small == 0 &&
          accept(base, [&](int64_t size) { return size % base == 0 ? size / base * small : size; }))
        return true;
    for (int64_t small = kLeast; small < std::min<int64_t>(base, 4 * kLeast); small++)
      if (accept(base, [&](int64_t size) { return size == base ? small : size; })) return true;
    return false;
  }

  template <class F>
  bool accept(int64_t base, const F& smaller) {
    Sizes tried = sizes_;
    std::set<int64_t> taken;
    bool hit = false;
    for (auto& [real, small] : tried) {
      const int64_t before = small;
      small = smaller(small);
      hit = hit || before == base;
      if (small != before && small < least_.at(real)) return false;
      if (!taken.insert(small).second) return false;
      for (const auto& [all, few] : divisors_)
        if ((real % all == 0) != (small % few == 0)) return false;
    }
    if (!hit || !fits(graph_, tried)) return false;
    sizes_ = std::move(tried);
    return true;
  }

  const Graph& graph_;
  Sizes sizes_, least_;
  std::vector<std::pair<int64_t, int64_t>> divisors_;  // what an axis divides into, really and now
};

void apply(Plan& plan, const Sizes& sizes) {
  each_size(plan.graph, [&](int64_t& size, int64_t) { size = small_of(sizes, size); });
  infer_types(plan.graph);
  // Data may have fewer tokens than the model's table.
  if (plan.data.vocab > 0) {
    const auto table = sizes.lower_bound(plan.data.vocab);
    if (table != sizes.end()) plan.data.vocab = std::max<int64_t>(1, plan.data.vocab * table->second / table->first);
  }
  plan.data.context = small_of(sizes, plan.data.context);
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

void shrink_dims(const Plan& real, Plan& small, Plan& one) {
  const Sizes sizes = DimShrinker(real, small).run();
  apply(small, sizes);
  apply(one, sizes);
}

}  // namespace prun
