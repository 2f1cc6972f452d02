// Folds permute, slice, expand and reshapes that only add or remove dims of size 1 into the matmuls and elementwise ops
// that read them, and a permute into the matmul that makes its operand. These ops get the attribute `views`
// (prun/sdk/operand_view.h), and the copy disappears. A view that remains gets the attribute `copies`, the reason.
//
// Runs after autodiff, so that derivatives need no rule for it: those of views are views again. Surprising fact: a view
// is folded into all its readers or into none, because otherwise both the copy and its operand would be retained.
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "compile/compile_state.h"
#include "ir/ops.h"
#include "ir/ops/rules.h"
#include "ir/pointwise.h"

namespace prun {
namespace {

using Dims = std::vector<sdk::ViewedDim>;

// Returns for each dim of x the dim of y that it becomes, -1 if y lacks it; nullopt if the reshape does more than add
// and remove dims of size 1.
std::optional<std::vector<int>> kept_dims(const Shape& x, const Shape& y, const Attrs& attrs) {
  std::vector<int> places;
  size_t to = 0;
  for (const int64_t size : x) {
    while (to < y.size() && y[to] != size && y[to] == 1) ++to;
    const bool same = to < y.size() && y[to] == size;
    if (!same && size != 1) return std::nullopt;
    places.push_back(same ? static_cast<int>(to++) : -1);
  }
  while (to < y.size())
    if (y[to++] != 1) return std::nullopt;
  if (attrs.has("axis") && places[attrs.integer("from")] != attrs.integer("to")) return std::nullopt;
  return places;
}

class Views {
 public:
  explicit Views(CompileState& state) : state_(state), graph_(state.graph) {
    for (std::vector<Node>* list : {&graph_.nodes, &state.backward})
      for (Node& node : *list) nodes_.push_back(&node);
    gone_.assign(nodes_.size(), false);
    folds_.assign(nodes_.size(), false);
    vetoed_.assign(nodes_.size(), false);
    maker_.assign(graph_.values.size(), -1);
    readers_.resize(graph_.values.size());
    by_samples_.assign(graph_.values.size(), false);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const Node& node = *nodes_[n];
      bool samples = false;
      for (const ValueId input : node.inputs) {
        readers_[input].push_back(n);
        samples = samples || by_samples_[input] || graph_.values[input].kind == ValueKind::input;
      }
      for (const ValueId output : node.outputs) maker_[output] = static_cast<int>(n), by_samples_[output] = samples;
    }
    for (const ValueId gradient : state.parameter_grad)
      if (!gradient.none()) results_.insert(gradient);
    for (const LossTerm& term : loss_terms(graph_)) results_.insert(term.values.begin(), term.values.end());
  }

  void run() {
    for (const ValueId value : graph_.values.ids()) split_before_slices(value);
    do find();
    while (veto());
    for (size_t n = nodes_.size(); n-- > 0;)
      if (folds_[n]) fold(n);
    for (size_t n = 0; n < nodes_.size(); ++n)
      if (!gone_[n] && nodes_[n]->op == &ops::permute) fold_into_maker(n);
    for (const auto& [n, views] : views_)
      if (!views.empty()) nodes_[n]->attrs.set("views", sdk::operand_views_text(views));
    for (size_t n = 0; n < nodes_.size(); ++n)
      if (is_view(n) && !gone_[n] && nodes_[n]->op != &ops::reshape) nodes_[n]->attrs.set("copies", reason(n));
    size_t at = 0;
    for (std::vector<Node>* list : {&graph_.nodes, &state_.backward})
      std::erase_if(*list, [&](const Node&) { return gone_[at++]; });
  }

 private:
  const Shape& shape(ValueId value) const { return graph_.values[value].type.shape; }
  const Shape& read_shape(size_t n) const { return shape(nodes_[n]->inputs[0]); }
  const Shape& written_shape(size_t n) const { return shape(nodes_[n]->outputs[0]); }
  bool is_backward(size_t n) const { return n >= graph_.nodes.size(); }

  bool is_view(size_t n) const {
    const OpDef* op = nodes_[n]->op;
    return op == &ops::permute || op == &ops::slice || op == &ops::expand || op == &ops::reshape ||
           op == &ops::concat || op == &ops::pad;
  }

  bool reads_views(size_t n) const {
    const Node& node = *nodes_[n];
    if (node.op == &ops::matmul) return true;
    const bool elementwise = node.op->distribution == Distribution::elementwise || node.op == &ops::pointwise;
    return elementwise && written_shape(n).size() <= sdk::kMostPointwiseDims &&
           node.inputs.size() <= sdk::kMostPointwiseInputs &&
           as_pointwise(*node.op, node.attrs, node.inputs.size()).has_value();
  }

  // Exchanges slices with reshapes that split the sliced dim, so that one reshape without a copy precedes the slices,
  // which may be folded: heads of q, k and v in one tensor. A tensor is read in one shape, because bytes have one
  // placement (verify/values.h).
  void split_before_slices(ValueId x) {
    if (graph_.values[x].kind != ValueKind::activation || is_overwritten(x)) return;
    std::vector<std::pair<size_t, size_t>> pairs;  // a slice, and the reshape that reads it
    Shape whole;
    int64_t dim = 0;
    for (const size_t at : readers_[x]) {
      const Node& slice = *nodes_[at];
      const std::vector<size_t>& readers = readers_[slice.outputs.empty() ? x : slice.outputs[0]];
      if (slice.op != &ops::slice || readers.size() != 1 || results_.contains(slice.outputs[0])) return;
      const Shape split = split_whole(slice, *nodes_[readers[0]]);
      if (split.empty() || (!pairs.empty() && (split != whole || slice.attrs.integer("dim") != dim))) return;
      whole = split;
      dim = slice.attrs.integer("dim");
      pairs.emplace_back(at, readers[0]);
    }
    if (pairs.empty()) return;
    const ValueId made = nodes_[pairs[0].first]->outputs[0];
    for (const auto& [at, n] : pairs) {
      Node &slice = *nodes_[at], &split = *nodes_[n];
      const int64_t run = shape(x)[dim] / whole[dim], start = slice.attrs.integer("start");
      std::swap(slice.op, split.op);
      std::swap(slice.attrs, split.attrs);
      slice.attrs.set("dims", whole);
      split.attrs.set("start", start / run);
      split.attrs.set("size", written_shape(n)[dim]);
      split.inputs = {made};
      if (n == pairs[0].second) continue;
      readers_[made].push_back(n);
      readers_[slice.outputs[0]].clear();
      gone_[at] = true;
    }
    readers_[x] = {pairs[0].first};
    Value& value = graph_.values[made];
    value.type.shape = whole;
    value.name += ".whole";  // no longer the slice that a proof would compare it with
  }
  // Returns the shape in which a slice's operand is split as by `split`, the reader of the slice; {} if it cannot be.
  Shape split_whole(const Node& slice, const Node& split) const {
    if (split.op != &ops::reshape || slice.call != split.call) return {};
    const auto dim = slice.attrs.integer("dim");
    const Shape &part = shape(split.inputs[0]), &parts = shape(split.outputs[0]);
    const int64_t after = std::ssize(part) - dim - 1, all = shape(slice.inputs[0])[dim];
    if (parts.size() < part.size() || !std::equal(part.begin(), part.begin() + dim, parts.begin()) ||
        !std::equal(part.end() - after, part.end(), parts.end() - after))
      return {};
    const int64_t run = part[dim] / parts[dim];
    if (slice.attrs.integer("start") % run != 0 || all % run != 0) return {};
    Shape whole = parts;
    whole[dim] = all / run;
    return whole;
  }

  // Sets folds_ to the views whose readers all read with strides, those that are folded themselves included.
  void find() {
    for (size_t n = nodes_.size(); n-- > 0;) folds_[n] = !vetoed_[n] && may_fold(n);
  }
  bool may_fold(size_t n) const {
    const Node& node = *nodes_[n];
    if (gone_[n] || !is_view(n) || node.op == &ops::concat || node.op == &ops::pad) return false;
    if (node.op == &ops::reshape) {
      const int maker = maker_[node.inputs[0]];
      if (maker < 0 || !is_view(maker) || !kept_dims(read_shape(n), written_shape(n), node.attrs)) return false;
    }
    const std::vector<size_t>& readers = readers_[node.outputs[0]];
    if (readers.empty() || results_.contains(node.outputs[0]) || is_overwritten(node.inputs[0])) return false;
    const bool all = std::all_of(readers.begin(), readers.end(), [&](size_t r) {
      return nodes_[r]->call == node.call && (folds_[r] || reads_views(r)) && has_samples(node, r);
    });
    return all && fits_matmuls(n, n, [](Dims dims) { return dims; });
  }
  // Returns whether the matmuls that read the result of view `last`, the end of a chain from view `first`, can read the
  // operand of `first`. `chain`: from dims of the result of `first` to those of its operand.
  template <class Chain>
  bool fits_matmuls(size_t first, size_t last, const Chain& chain) const {
    const ValueId y = nodes_[last]->outputs[0];
    for (const size_t r : readers_[y]) {
      const Node& reader = *nodes_[r];
      if (folds_[r]) {
        const auto longer = [&](const Dims& dims) { return chain(through(reader, dims)); };
        if (!fits_matmuls(first, r, std::function<Dims(Dims)>(longer))) return false;
      }
      for (size_t k = 0; k < reader.inputs.size() && reader.op == &ops::matmul; ++k)
        if (reader.inputs[k] == y && !fits_matmul(*nodes_[first], shape(y), chain(dims_of(r, k)))) return false;
    }
    return true;
  }
  // `shape`: the operand as the matmul reads it.
  bool fits_matmul(const Node& view, const Shape& wanted, const Dims& dims) const {
    const Shape& stored = shape(view.inputs[0]);
    const sdk::OperandView read{0, simple(stored, through(view, dims))};
    const size_t rank = wanted.size();
    const auto elements = sdk::viewed_elements(read, stored, rank);
    const auto has = [&](size_t to) {
      return std::any_of(read.dims.begin(), read.dims.end(),
                         [&](const auto& dim) { return dim.to == static_cast<int>(to); });
    };
    return elements && elements->sizes[rank - 1] == wanted[rank - 1] && elements->sizes[rank - 2] == wanted[rank - 2] &&
           has(rank - 1) && has(rank - 2) && sdk::strided_matrices(&read, stored, rank);
  }

  // Makes a matmul write the permutation of its result, if nothing else reads it and its rows, or the rows of its
  // transpose, are contiguous.
  void fold_into_maker(size_t n) {
    const Node& view = *nodes_[n];
    const ValueId x = view.inputs[0];
    const int at = maker_[x];
    if (at < 0 || gone_[at] || nodes_[at]->op != &ops::matmul || nodes_[at]->call != view.call) return;
    if (!std::all_of(readers_[x].begin(), readers_[x].end(), [&](size_t r) { return r == n; })) return;
    Node& matmul = *nodes_[at];
    std::vector<sdk::OperandView>& views = views_[at];
    const sdk::OperandView* const before = sdk::view_of_operand(views, 2);
    const int rank = static_cast<int>(shape(x).size());
    Dims dims;
    for (const int64_t dim : ops::sizes_of(view.attrs, "order"))
      dims.push_back(before == nullptr ? sdk::ViewedDim{static_cast<int>(dim)} : before->dims[dim]);
    if (dims.back().to + 2 < rank) return;
    if (dims.back().to + 2 == rank) {
      transpose(matmul, views);
      for (sdk::ViewedDim& dim : dims)
        if (dim.to + 2 >= rank) dim.to = 2 * rank - 3 - dim.to;
    }
    std::erase_if(views, [](const auto& one) { return one.operand == 2; });
    views.push_back({2, std::move(dims)});
    matmul.outputs = view.outputs;
    maker_[view.outputs[0]] = at;
    gone_[n] = true;
  }
  // Makes a matmul compute (A·B)ᵀ = Bᵀ·Aᵀ.
  static void transpose(Node& matmul, std::vector<sdk::OperandView>& views) {
    const bool a = matmul.attrs.integer("transpose_a") != 0, b = matmul.attrs.integer("transpose_b") != 0;
    std::swap(matmul.inputs[0], matmul.inputs[1]);
    for (sdk::OperandView& one : views)
      if (one.operand < 2) one.operand = 1 - one.operand;
    std::sort(views.begin(), views.end(), [](const auto& x, const auto& y) { return x.operand < y.operand; });
    matmul.attrs.erase("transpose_a"), matmul.attrs.erase("transpose_b");
    if (!b) matmul.attrs.set("transpose_a", int64_t{1});
    if (!a) matmul.attrs.set("transpose_b", int64_t{1});
  }
  // Ops that write their results over an operand (StepBuilder::output_of), which shares its memory with its aliases.
  bool is_overwritten(ValueId value) const {
    while (maker_[value] >= 0 && nodes_[maker_[value]]->op == &ops::reshape) value = nodes_[maker_[value]]->inputs[0];
    return has_overwritten_alias(value);
  }
  // Evaluations omit dropout.
  static bool is_alias(const Node& node) {
    return node.op == &ops::reshape || node.op == &ops::by_phase || node.op == &ops::dropout;
  }
  bool has_overwritten_alias(ValueId value) const {
    return std::any_of(readers_[value].begin(), readers_[value].end(), [&](size_t r) {
      const Node& reader = *nodes_[r];
      return reader.op->op_class == OpClass::communication || reader.op == &ops::cross_entropy_and_grad ||
             (is_alias(reader) && has_overwritten_alias(reader.outputs[0]));
    });
  }
  // Each rank has its samples of a tensor that repeats once a sample. Without the view another operand has to bring
  // them.
  bool has_samples(const Node& view, size_t reader) const {
    if (!view.attrs.has("rows_axis")) return true;
    const std::vector<ValueId>& operands = nodes_[reader]->inputs;
    return std::any_of(operands.begin(), operands.end(), [&](ValueId operand) {
      return by_samples_[operand] && operand != view.outputs[0] && shape(operand) == written_shape(reader);
    });
  }

  // Forbids slices for whose sake backward would retain a larger tensor. Returns whether it found any.
  bool veto() {
    bool any = false;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (!folds_[n] || nodes_[n]->op != &ops::slice || is_backward(n) || !is_retained(n)) continue;
      const ValueId x = nodes_[n]->inputs[0];
      int64_t retained = 0;
      for (const size_t r : readers_[x]) {
        const bool sliced = folds_[r] && nodes_[r]->op == &ops::slice && !is_backward(r);
        if (sliced ? is_retained(r) : is_backward(r)) retained += sliced ? element_count(written_shape(r)) : kAll;
      }
      if (graph_.values[x].kind != ValueKind::activation || retained >= element_count(shape(x))) continue;
      vetoed_[n] = any = true;
    }
    return any;
  }
  bool is_retained(size_t n) const {
    const std::vector<size_t>& readers = readers_[nodes_[n]->outputs[0]];
    return std::any_of(readers.begin(), readers.end(),
                       [&](size_t r) { return is_backward(r) || (folds_[r] && is_retained(r)); });
  }

  void fold(size_t n) {
    const Node& view = *nodes_[n];
    const ValueId x = view.inputs[0], y = view.outputs[0];
    for (const size_t r : readers_[y]) {
      Node& reader = *nodes_[r];
      if (gone_[r]) continue;  // a view that has been folded into readers, which follow in the list
      if (reader.op != &ops::matmul) make_pointwise(r);
      for (size_t k = 0; k < reader.inputs.size(); ++k) {
        if (reader.inputs[k] != y) continue;
        set_view(r, k, shape(x), through(view, dims_of(r, k)));
        reader.inputs[k] = x;
      }
      readers_[x].push_back(r);
    }
    gone_[n] = true;
  }

  void make_pointwise(size_t n) {
    Node& node = *nodes_[n];
    if (node.op != &ops::pointwise) {
      const sdk::PointwiseProgram program = *as_pointwise(*node.op, node.attrs, node.inputs.size());
      node.op = &ops::pointwise;
      node.attrs = {};
      node.attrs.set("program", sdk::pointwise_text(program));
    }
    node.attrs.set("shape", written_shape(n));
  }

  // Returns the dims of the output that those of operand k become.
  Dims dims_of(size_t n, size_t k) const {
    if (const auto views = views_.find(n); views != views_.end())
      if (const sdk::OperandView* view = sdk::view_of_operand(views->second, static_cast<int>(k))) return view->dims;
    const Node& node = *nodes_[n];
    const int64_t mask = node.attrs.has("over") ? node.attrs.integers("over")[k] : -1;
    Dims dims;
    for (const int place : sdk::pointwise_places(shape(node.inputs[k]).size(), written_shape(n).size(), mask))
      dims.push_back({place});
    return dims;
  }

  void set_view(size_t n, size_t k, const Shape& stored, Dims dims) {
    const int last = static_cast<int>(written_shape(n).size()) - static_cast<int>(stored.size());
    dims = simple(stored, std::move(dims));
    bool plain = nodes_[n]->op != &ops::matmul && !nodes_[n]->attrs.has("over");
    for (size_t d = 0; d < dims.size(); ++d) plain = plain && dims[d] == sdk::ViewedDim{last + static_cast<int>(d)};
    std::vector<sdk::OperandView>& views = views_[n];
    std::erase_if(views, [&](const auto& view) { return view.operand == static_cast<int>(k); });
    if (plain) return;
    views.push_back({static_cast<int>(k), std::move(dims)});
    std::sort(views.begin(), views.end(), [](const auto& a, const auto& b) { return a.operand < b.operand; });
  }

  // Returns the dims with parts of one element, which repeat, and of all elements in their usual form.
  static Dims simple(const Shape& stored, Dims dims) {
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d].size == 1 && stored[d] > 1) dims[d] = {-1, dims[d].start};
      if (dims[d].to >= 0 && dims[d].size == stored[d]) dims[d] = {dims[d].to};
    }
    return dims;
  }

  // Returns how a reader that reads a view's result as `dims` reads the view's operand.
  Dims through(const Node& view, const Dims& dims) const {
    const Shape& x = shape(view.inputs[0]);
    if (view.op == &ops::permute) {
      const Shape order = ops::sizes_of(view.attrs, "order");
      Dims before(x.size());
      for (size_t d = 0; d < order.size(); ++d) before[order[d]] = dims[d];
      return before;
    }
    if (view.op == &ops::reshape) {
      const auto places = kept_dims(x, shape(view.outputs[0]), view.attrs).value_or(std::vector<int>(x.size(), -1));
      Dims before;
      for (const int place : places) before.push_back(place < 0 ? sdk::ViewedDim{-1, 0} : dims[place]);
      return before;
    }
    Dims before = dims;
    if (view.op == &ops::slice) {
      sdk::ViewedDim& dim = before[view.attrs.integer("dim")];
      if (dim.to >= 0 && dim.size == 0) dim.size = view.attrs.integer("size");
      dim.start += view.attrs.integer("start");
      return before;
    }
    for (size_t d = 0; d < x.size(); ++d)  // expand
      if (x[d] == 1) before[d] = {dims[d].to};
    return before;
  }

  std::string reason(size_t n) const {
    const Node& node = *nodes_[n];
    if (node.op == &ops::concat || node.op == &ops::pad) return "its operands have places of their own";
    if (results_.contains(node.outputs[0])) return "the optimizer reads it";
    if (is_overwritten(node.inputs[0])) return "another op overwrites its operand";
    for (const size_t r : readers_[node.outputs[0]]) {
      if (gone_[r]) continue;
      if (nodes_[r]->call != node.call) return "another unit reads it";
      if (!reads_views(r)) return std::string(nodes_[r]->op->name) + " reads it as it is stored";
    }
    return vetoed_[n] ? "backward would retain all of its operand" : "its readers need a sample's rows";
  }

  static constexpr int64_t kAll = INT64_MAX / 4096;

  CompileState& state_;
  Graph& graph_;
  std::vector<Node*> nodes_;  // forward, then backward
  std::vector<bool> gone_, folds_, vetoed_;
  Table<ValueId, int> maker_;
  Table<ValueId, std::vector<size_t>> readers_;
  Table<ValueId, bool> by_samples_;                        // depends on the data
  std::set<ValueId> results_;                              // read by other ops than nodes
  std::map<size_t, std::vector<sdk::OperandView>> views_;  // by node
};

}  // namespace

void elide_views(CompileState& state) {
  if (!state.options.leaves_views) Views(state).run();
}

}  // namespace prun
