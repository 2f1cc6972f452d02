// Removes concatenations of gradients, such as those of q, k and v before the gradient of their fused layer, by making
// the matmuls and elementwise ops that compute the parts write into the concatenation.
//
//   matmul a b          -> dqkv.part0   {whole, views="x2 0 2 1:0+8 3"}
//   matmul c d dqkv.part0 -> dqkv.part1 {whole, continues, ..}         in the memory of dqkv.part0
//
// Runs after elide_views, whose views of results it completes. Surprising fact: each op reads the result of the one
// before, so that a value still has one writer. The last one writes the concatenation's value.
#include <algorithm>
#include <set>

#include "compile/compile_state.h"
#include "ir/ops.h"
#include "ir/ops/rules.h"
#include "ir/pointwise.h"

namespace prun {
namespace {

class Parts {
 public:
  explicit Parts(CompileState& state) : state_(state), graph_(state.graph), nodes_(state.backward) {
    gone_.assign(nodes_.size(), false);
    maker_.assign(graph_.values.size(), -1);
    readers_.assign(graph_.values.size(), 0);
    for (const ValueId gradient : state.parameter_grad)
      if (!gradient.none()) results_.insert(gradient);
    for (const Node& node : graph_.nodes)
      for (const ValueId input : node.inputs) ++readers_[input];
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for (const ValueId output : nodes_[n].outputs) maker_[output] = static_cast<int>(n);
      for (const ValueId input : nodes_[n].inputs) ++readers_[input];
    }
  }

  void run() {
    for (size_t n = 0; n < nodes_.size(); ++n)
      if (nodes_[n].op == &ops::concat && !results_.contains(nodes_[n].outputs[0])) place(join_before_merges(n));
    size_t at = 0;
    std::erase_if(nodes_, [&](const Node&) { return gone_[at++]; });
    state_.parameter_grad.resize(graph_.values.size(), {});
  }

 private:
  const Shape& shape(ValueId value) const { return graph_.values[value].type.shape; }

  // Returns the node that makes a part, if nothing else reads its result; -1 = none.
  int maker_of(ValueId part, const Node& concat) const {
    const int at = maker_[part];
    const bool alone = at >= 0 && !gone_[at] && readers_[part] == 1 && !results_.contains(part);
    return alone && nodes_[at].call == concat.call && nodes_[at].outputs.size() == 1 ? at : -1;
  }

  // Exchanges a concatenation with reshapes that merge its dim with the next one, such as heads into rows. Returns the
  // node of the concatenation.
  size_t join_before_merges(size_t n) {
    const auto dim = static_cast<size_t>(nodes_[n].attrs.integer("dim"));
    Shape whole;
    int last = -1;
    for (const ValueId part : nodes_[n].inputs) {
      const int at = maker_of(part, nodes_[n]);
      if (at < 0 || nodes_[at].op != &ops::reshape) return n;
      const int before = maker_of(nodes_[at].inputs[0], nodes_[n]);
      if (before < 0 || !writes_parts(nodes_[before])) return n;  // the concatenation would remain
      Shape split = shape(nodes_[at].inputs[0]);
      const Shape& merged = shape(part);
      if (split.size() != merged.size() + 1 || split[dim] * split[dim + 1] != merged[dim]) return n;
      Shape again = split;
      again[dim] = merged[dim];
      again.erase(again.begin() + static_cast<std::ptrdiff_t>(dim) + 1);
      if (again != merged) return n;
      split[dim] = 0;  // the parts may differ in it
      if (!whole.empty() && split != whole) return n;
      whole = std::move(split);
      last = std::max(last, at);
    }
    return exchange(n, static_cast<size_t>(last), dim);
  }
  size_t exchange(size_t n, size_t last, size_t dim) {
    Node &concat = nodes_[n], &split = nodes_[last];
    std::vector<ValueId> parts;
    Shape whole = shape(split.inputs[0]);
    whole[dim] = 0;
    for (const ValueId part : concat.inputs) {
      const auto at = static_cast<size_t>(maker_[part]);
      parts.push_back(nodes_[at].inputs[0]);
      whole[dim] += shape(parts.back())[dim];
      if (at != last) gone_[at] = true;
    }
    const ValueId made = split.outputs[0];
    std::swap(concat.op, split.op);
    std::swap(concat.attrs, split.attrs);
    concat.attrs.set("dims", shape(concat.outputs[0]));
    concat.inputs = {made};
    split.inputs = std::move(parts);
    readers_[made] = 1;
    graph_.values[made].type.shape = std::move(whole);
    graph_.values[made].name += ".whole";  // no longer the part that a proof would compare it with
    return last;
  }

  bool writes_parts(const Node& node) const {
    if (node.attrs.has("whole") || node.attrs.has("over_tokens")) return false;
    if (node.op == &ops::matmul) return true;
    const bool elementwise = node.op->distribution == Distribution::elementwise || node.op == &ops::pointwise;
    return elementwise && shape(node.outputs[0]).size() <= sdk::kMostPointwiseDims &&
           node.inputs.size() <= sdk::kMostPointwiseInputs &&
           as_pointwise(*node.op, node.attrs, node.inputs.size()).has_value();
  }

  struct Part {
    size_t maker;
    int64_t start, size;
  };

  // Makes the ops before a concatenation write into its result, if all of them can.
  void place(size_t n) {
    Node& concat = nodes_[n];
    const auto dim = static_cast<size_t>(concat.attrs.integer("dim"));
    std::vector<Part> parts;
    int64_t start = 0;
    for (const ValueId part : concat.inputs) {
      const int at = maker_of(part, concat);
      if (at < 0 || !writes_parts(nodes_[at])) return;
      parts.push_back({static_cast<size_t>(at), start, shape(part)[dim]});
      start += parts.back().size;
    }
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.maker < b.maker; });
    const Value whole = graph_.values[concat.outputs[0]];
    for (size_t i = 0; i < parts.size(); ++i) {
      ValueId made = concat.outputs[0];
      if (i + 1 < parts.size()) {
        made = graph_.values.next();
        Value value = whole;
        value.name += ".part" + std::to_string(i);
        graph_.values.push_back(std::move(value));
        maker_.push_back(-1), readers_.push_back(1);
      }
      write(parts[i], dim, whole.type.shape, made);
      Node& node = nodes_[parts[i].maker];
      if (i + 1 < parts.size()) node.attrs.set("continued", int64_t{1});
      if (i > 0) {
        node.inputs.push_back(nodes_[parts[i - 1].maker].outputs[0]);
        node.attrs.set("continues", int64_t{1});
      }
    }
    gone_[n] = true;
  }
  // Makes a node write its result into `made`, a tensor of shape `whole`.
  void write(const Part& part, size_t dim, const Shape& whole, ValueId made) {
    Node& node = nodes_[part.maker];
    const Shape own = shape(node.outputs[0]);
    const int result = static_cast<int>(node.inputs.size());
    if (node.op != &ops::matmul && node.op != &ops::pointwise) {
      const sdk::PointwiseProgram program = *as_pointwise(*node.op, node.attrs, node.inputs.size());
      node.op = &ops::pointwise;
      node.attrs = {};
      node.attrs.set("program", sdk::pointwise_text(program));
    }
    if (node.op == &ops::pointwise) node.attrs.set("shape", own);
    std::vector<sdk::OperandView> views = ops::views_of(node.attrs);
    if (views.empty() || views.back().operand != result) {
      views.push_back({result, {}});
      for (size_t d = 0; d < own.size(); ++d) views.back().dims.push_back({static_cast<int>(d)});
    }
    views.back().dims[dim].start = part.start;
    views.back().dims[dim].size = part.size;
    node.attrs.set("views", sdk::operand_views_text(views));
    node.attrs.set("whole", whole);
    node.outputs = {made};
    maker_[made] = static_cast<int>(part.maker);
  }

  CompileState& state_;
  Graph& graph_;
  std::vector<Node>& nodes_;
  std::vector<bool> gone_;
  Table<ValueId, int> maker_, readers_;
  std::set<ValueId> results_;  // read by other ops than nodes
};

}  // namespace

void write_parts(CompileState& state) {
  if (!state.options.leaves_views) Parts(state).run();
}

}  // namespace prun
