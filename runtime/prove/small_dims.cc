// Each group of sizes takes the smallest scale that its rules permit; then all ops infer their shapes once. If the
// model has a relation that size_relations.cc does not know, the groups that do not fit keep their real sizes.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "compile/distributor.h"
#include "prove/size_relations.h"
#include "prove/small_plan.h"

namespace prun {
namespace {

constexpr int64_t kLeastDim = 4, kLeastHeads = 2, kLeastHeadSize = 2,
                  kLeastRotated = 4;                                        // smaller ones are unchanged
constexpr int64_t kMostScale = 1024, kLargerScale = 48, kLargerHeads = 12;  // upper bounds of the search

// A divisor of sizes in the real plan, and its counterpart in the small plan.
struct Divisor {
  int64_t real, small;
};

// The sizes that the axes of the mesh split.
class Divisors {
 public:
  Divisors(const Plan& real, const Plan& small) : graph_(small.graph) {
    for (const Strategy& strategy : small.strategies) {
      for (const StrategyUnit& unit : strategy.units) {
        for (const LayerPlacement& placement : unit.layers) add_layer(unit.unit_class, placement);
        for (const LayerPlacement& placement : unit.activations) add_tokens(placement.axis, 1);
      }
      if (strategy.splits != Splits::tokens) continue;
      for (const std::string& axis : strategy.axes) add_tokens(axis, 2);
    }
    for (const auto& [axis, split] : split_) {
      const Divisor by{real.mesh.size(axis), small.mesh.size(axis)};
      if (by.small == 1) continue;
      for (const auto& [dim, pieces] : split.dims) combine(of_dims_[dim], by, pieces);
      if (split.layers) combine(of_heads_, by, 1);
    }
  }

  const std::vector<Divisor>& of_dim(int64_t dim) const {
    static const std::vector<Divisor> kNone;
    const auto found = of_dims_.find(dim);
    return found == of_dims_.end() ? kNone : found->second;
  }
  const std::vector<Divisor>& of_heads() const { return of_heads_; }

 private:
  struct SplitSizes {
    std::map<int64_t, int64_t> dims;  // and the pieces per rank
    bool layers = false;
  };

  void add(const std::string& axis, int64_t dim, int64_t pieces) {
    int64_t& most = split_[axis].dims[dim];
    most = std::max(most, pieces);
  }

  void add_layer(const std::string& unit_class, const LayerPlacement& placement) {
    split_[placement.axis].layers = true;
    for (const Value& value : graph_.values) {
      if (value.kind != ValueKind::parameter || graph_.units[value.unit].unit_class != unit_class ||
          layer_of(graph_, value) != placement.layer)
        continue;
      const Shape& shape = value.type.shape;
      if (placement.dim < std::ssize(shape)) add(placement.axis, shape[placement.dim], 1);
      for (const int64_t block : value.blocks) add(placement.axis, block, 1);
    }
  }

  // Context parallelism has two chunks per rank.
  void add_tokens(const std::string& axis, int64_t pieces) {
    for (const Value& value : graph_.values)
      if (value.kind == ValueKind::input && value.type.shape.size() > 1) add(axis, value.type.shape[1], pieces);
  }

  // Several axes may split one dim.
  static void combine(std::vector<Divisor>& all, const Divisor& by, int64_t pieces) {
    for (size_t i = 0, n = all.size(); i < n; i++)
      all.push_back({all[i].real * pieces * by.real, all[i].small * pieces * by.small});
    all.push_back({pieces * by.real, pieces * by.small});
    if (pieces > 1) all.push_back(by);
  }

  const Graph& graph_;
  std::map<std::string, SplitSizes> split_;  // by axis
  std::map<int64_t, std::vector<Divisor>> of_dims_;
  std::vector<Divisor> of_heads_;
};

int64_t common_divisor(const std::set<int64_t>& sizes) {
  int64_t divisor = 0;
  for (const int64_t size : sizes) divisor = std::gcd(divisor, size);
  return std::max<int64_t>(divisor, 1);
}

int64_t common_divisor(const std::map<int64_t, int64_t>& sizes) {
  std::set<int64_t> bases;
  for (const auto& [real, base] : sizes) bases.insert(base);
  return common_divisor(bases);
}

// The scale of a group: its heads become heads / common divisor * `heads`; head sizes likewise. A group without heads
// scales by head_size only.
struct Scale {
  int64_t heads, head_size;
};

class DimShrinker {
 public:
  DimShrinker(const Plan& real, const Plan& small)
      : graph_(small.graph), relations_(size_relations(graph_)), divisors_(real, small) {
    sizes_.heads.resize(relations_.groups.size());
    sizes_.head_sizes.resize(relations_.groups.size());
  }

  const SizeRelations& relations() const { return relations_; }

  SmallSizes run() {
    std::vector<size_t> order(relations_.groups.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto freedom = [&](size_t g) {  // a group without heads adapts to the others
      const SizeGroup& group = relations_.groups[g];
      return std::pair(group.heads.empty(), group.dims.begin()->first);
    };
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return freedom(a) < freedom(b); });
    for (const size_t g : order) choose(g);
    if (fits(sizes_)) return std::move(sizes_);
    return those_that_fit(order);
  }

 private:
  // Rules besides the group's own: sizes remain undivided and distinct; sizes remain distinct; none.
  enum class Care : uint8_t { undivided, different, nothing };

  void choose(size_t g) {
    for (const bool larger : {false, true})
      for (const Care care : {Care::undivided, Care::different, Care::nothing})
        if (choose(g, care, larger)) return;
    for (const auto& [dim, base] : relations_.groups[g].dims) take(dim, dim);
  }

  // `larger`: small sizes may be larger than the real ones, because three ranks may divide no real size.
  bool choose(size_t g, Care care, bool larger) {
    const SizeGroup& group = relations_.groups[g];
    int64_t heads = group.heads.empty() ? 1 : common_divisor(group.heads);
    int64_t sizes =
        std::min(group.heads.empty() ? common_divisor(group.dims) : common_divisor(group.head_sizes), kMostScale);
    if (larger) sizes = std::max(sizes, kLargerScale), heads = group.heads.empty() ? 1 : std::max(heads, kLargerHeads);
    // Tries the smallest product first, because it is the number of columns.
    for (int64_t product = 1; product <= heads * sizes; product++)
      for (int64_t h = 1; h <= std::min(heads, product); h++)
        if (product % h == 0 && product / h <= sizes && apply_with_kernels(g, {h, product / h}, care)) return true;
    return false;
  }

  // Sets the small sizes of a group unless they break a rule.
  bool apply(size_t g, const Scale& scale, Care care) {
    const SizeGroup& group = relations_.groups[g];
    const auto scaled = [](int64_t size, int64_t by, int64_t common) {
      return size * by % common == 0 ? size * by / common : 0;
    };
    SmallSizes tried;
    std::map<int64_t, int64_t> heads, head_sizes;
    int64_t common = common_divisor(group.dims);
    if (!group.heads.empty()) {
      const int64_t of_heads = common_divisor(group.heads), of_sizes = common_divisor(group.head_sizes);
      common = of_heads * of_sizes;
      for (const auto& [size, base] : group.heads) {
        heads[size] = scaled(base, scale.heads, of_heads);
        if (heads[size] < std::min(size, kLeastHeads) || !divide_alike(divisors_.of_heads(), size, heads[size], care))
          return false;
      }
      const int64_t least = group.rotates ? kLeastRotated : kLeastHeadSize;
      for (const int64_t size : group.head_sizes) {
        head_sizes[size] = scaled(size, scale.head_size, of_sizes);
        if (head_sizes[size] < std::min(size, least) || head_sizes[size] % 2 > size % 2) return false;
      }
    }
    for (const auto& [size, base] : group.dims) {
      const int64_t small = scaled(base, scale.heads * scale.head_size, common);
      if (!permits(size, small, care)) return false;
      tried.dims[size] = small;
    }
    sizes_.heads[g] = std::move(heads);
    sizes_.head_sizes[g] = std::move(head_sizes);
    for (const auto& [size, small] : tried.dims) take(size, small);
    return true;
  }

  // Like apply; in addition the model's kernels fit into images of the small sizes.
  bool apply_with_kernels(size_t g, const Scale& scale, Care care) {
    const std::set<int64_t> taken = relations_.kernels.empty() ? std::set<int64_t>() : taken_;
    if (!apply(g, scale, care)) return false;
    if (relations_.kernels.empty() || holds_kernels(g)) return true;
    taken_ = taken;
    return false;
  }
  bool holds_kernels(size_t g) const {
    const SizeGroup& group = relations_.groups[g];
    SmallSizes tried;
    tried.heads.resize(sizes_.heads.size()), tried.head_sizes.resize(sizes_.head_sizes.size());
    bool image = false;
    for (const auto& [dim, base] : group.dims) {
      image = image || relations_.images.contains(dim);
      tried.dims[dim] = sizes_.dims.at(dim);
    }
    return !image || fits(tried);
  }

  bool permits(int64_t size, int64_t small, Care care) const {
    if (relations_.kernels.contains(size)) return small == size;
    const auto least = relations_.least.find(size);
    if (small < std::max(std::min(size, kLeastDim), least == relations_.least.end() ? 0 : least->second)) return false;
    if (size == 1 && small != 1) return false;
    if (care != Care::nothing && taken_.contains(small)) return false;
    return divide_alike(divisors_.of_dim(size), size, small, care) && has_rows(size, small);
  }

  static bool divide_alike(const std::vector<Divisor>& divisors, int64_t size, int64_t small, Care care) {
    return std::all_of(divisors.begin(), divisors.end(), [&](const Divisor& by) {
      if (size % by.real == 0) return small % by.small == 0;
      return care != Care::undivided || small % by.small != 0;
    });
  }

  // Returns whether position tables have a row for every token.
  bool has_rows(int64_t size, int64_t small) const {
    return std::all_of(relations_.rows.begin(), relations_.rows.end(), [&](const std::pair<int64_t, int64_t>& pair) {
      const auto now = [&](int64_t dim) {
        const auto chosen = sizes_.dims.find(dim);
        return dim == size ? small : chosen == sizes_.dims.end() ? -1 : chosen->second;
      };
      const int64_t rows = now(pair.first), tokens = now(pair.second);
      return rows < 0 || tokens < 0 || rows >= tokens;
    });
  }

  void take(int64_t size, int64_t small) {
    sizes_.dims[size] = small;
    taken_.insert(small);
  }

  bool fits(const SmallSizes& sizes) const {
    Graph tried = graph_;
    try {
      resize(tried, relations_, sizes);
    } catch (const Error&) {
      return false;
    }
    return true;
  }

  // Applies the small sizes group by group; groups that do not fit keep their real sizes. A second round retries groups
  // that depend on later ones.
  SmallSizes those_that_fit(const std::vector<size_t>& order) const {
    SmallSizes kept;
    kept.heads.resize(order.size());
    kept.head_sizes.resize(order.size());
    std::set<size_t> done;
    for (int round = 0; round < 2; round++)
      for (const size_t g : order) {
        if (done.contains(g)) continue;
        SmallSizes tried = kept;
        for (const auto& [dim, base] : relations_.groups[g].dims) tried.dims[dim] = sizes_.dims.at(dim);
        tried.heads[g] = sizes_.heads[g];
        tried.head_sizes[g] = sizes_.head_sizes[g];
        if (!fits(tried)) continue;
        kept = std::move(tried);
        done.insert(g);
      }
    return kept;
  }

  const Graph& graph_;
  const SizeRelations relations_;
  const Divisors divisors_;
  SmallSizes sizes_;
  std::set<int64_t> taken_;  // small dims in use
};

void apply(Plan& plan, const SizeRelations& relations, const SmallSizes& sizes) {
  resize(plan.graph, relations, sizes);
  const auto small = [&](int64_t dim) {
    const auto found = sizes.dims.find(dim);
    return found == sizes.dims.end() ? dim : found->second;
  };
  // Data may have fewer token ids than the tables and logits have rows and columns.
  const int64_t vocab = plan.data.vocab;
  for (const int64_t dim : relations.vocabularies)
    if (vocab > 0 && dim >= vocab)
      plan.data.vocab = std::min(plan.data.vocab, std::max<int64_t>(1, vocab * small(dim) / dim));
  plan.data.context = small(plan.data.context);
}

}  // namespace

void shrink_dims(const Plan& real, Plan& small, const std::vector<Plan*>& others) {
  DimShrinker shrinker(real, small);
  const SmallSizes sizes = shrinker.run();
  const SizeRelations relations = shrinker.relations();
  apply(small, relations, sizes);
  for (Plan* other : others) apply(*other, relations, sizes);
}

}  // namespace prun
