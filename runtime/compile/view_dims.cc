#include "compile/view_dims.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/distributor.h"
#include "ir/ops.h"
#include "ir/ops/rules.h"

namespace prun {
namespace {

constexpr const OpDef* kViews[] = {&ops::reshape, &ops::permute, &ops::slice,      &ops::pad,
                                   &ops::concat,  &ops::expand,  &ops::gather_rows};

std::optional<int> dim_after_reshape(const Shape& x, int dim, const Shape& y, bool undivided) {
  const int64_t before = element_count({x.begin(), x.begin() + dim});
  std::optional<int> found;
  int64_t count = 1;
  for (int to = 0; to < std::ssize(y) && count <= before; count *= y[to++]) {
    if (count != before) continue;
    if (y[to] == x[dim]) return to;
    if (y[to] % x[dim] == 0 || (!undivided && x[dim] % y[to] == 0 && y[to] > 1)) found = found.value_or(to);
  }
  return undivided ? std::nullopt : found;
}

}  // namespace

bool is_view(const OpDef& op) { return std::find(std::begin(kViews), std::end(kViews), &op) != std::end(kViews); }

std::optional<int> dim_after(const Node& view, const Shape& x, int dim, const Shape& y, bool undivided) {
  if (view.op == &ops::reshape) return dim_after_reshape(x, dim, y, undivided);
  if (view.op == &ops::permute) {
    const Shape order = ops::sizes_of(view.attrs, "order");
    return static_cast<int>(std::find(order.begin(), order.end(), dim) - order.begin());
  }
  if (view.op == &ops::expand) return x[dim] == y[dim] ? std::optional(dim) : std::nullopt;
  if (view.op == &ops::gather_rows) return dim;
  return dim == view.attrs.integer("dim") ? std::nullopt : std::optional(dim);
}

bool mixes_rows(const Graph& graph, const Node& view, int dim) {
  return view.op == &ops::gather_rows && dim == std::ssize(graph.values[view.inputs[1]].type.shape) - 1;
}

std::string mixing_text(const Node& view, int dim, const Shape& x) {
  return fmt::format("{} mixes dim {} of {}", view.op->name, dim, shape_text(x));
}

namespace {

// The dim of each value that counts samples; -1 = none.
class Samples {
 public:
  explicit Samples(CompileState& state) : state_(state), graph_(state.graph) {
    dim_.assign(graph_.values.size(), -1);
    for (const ValueId v : graph_.values.ids())
      if (graph_.values[v].kind == ValueKind::input) dim_[v] = 0, samples_ = shape(v).front();
  }

  void run() {
    for (Node& node : graph_.nodes) follow(node);
  }

 private:
  const Shape& shape(ValueId value) const { return graph_.values[value].type.shape; }

  // Returns what divides the batch, such as "axis 'dp'".
  std::string divider() const {
    for (const std::string& axis : state_.plan.batch_axes)
      if (state_.plan.mesh.size(axis) > 1) return fmt::format("axis '{}'", axis);
    return fmt::format("micro = {}", state_.microbatches());
  }

  [[noreturn]] void fail(const Node& node, const std::string& text) const {
    throw plan_error(fmt::format("{}, the samples that {} divides; keep them a dim of their own", text, divider()),
                     node.site);
  }

  void follow(Node& node) {
    if (node.attrs.has("samples")) return;  // a mean over all samples
    int dim = -1;
    size_t from = 0;
    for (size_t i = node.inputs.size(); i-- > 0;)
      if (dim_[node.inputs[i]] >= 0) dim = dim_[node.inputs[i]], from = i;
    if (dim < 0) {
      if (node.outputs.empty()) return;  // write_rows
      const Shape& y = shape(node.outputs[0]);
      const bool repeats = node.op == &ops::expand && !y.empty() && shape(node.inputs[0]).front() == 1;
      if (repeats && y[0] == samples_) {
        if (!state_.data_axes.empty()) node.attrs.set("rows_axis", state_.data_axes);
        dim_[node.outputs[0]] = 0;
      }
      return;
    }
    if (is_view(*node.op)) {
      const Shape& x = shape(node.inputs[from]);
      std::optional<int> to;
      if (!mixes_rows(graph_, node, dim)) to = dim_after(node, x, dim, shape(node.outputs[0]), false);
      if (node.op == &ops::reshape && to && shape(node.outputs[0])[*to] % x[dim] != 0) to = std::nullopt;
      if (!to) fail(node, mixing_text(node, dim, x));
      dim_[node.outputs[0]] = *to;
      return;
    }
    const bool by_rows = node.op->distribution == Distribution::elementwise ||
                         node.op->distribution == Distribution::by_rows || node.op == &ops::linear ||
                         is_arithmetic(*node.op) || node.op->loss != Loss::none;
    const bool last = node.op->distribution != Distribution::elementwise && !is_arithmetic(*node.op) &&
                      dim + 1 == std::ssize(shape(node.inputs[from])) && node.op->loss == Loss::none && dim > 0;
    if ((dim > 0 && !by_rows) || last)
      fail(node, fmt::format("{} reads dim {} of {}", node.op->name, dim, shape_text(shape(node.inputs[from]))));
    if (is_arithmetic(*node.op))
      dim = static_cast<int>(
          dim_after_arithmetic(node, std::ssize(shape(node.inputs[from])), std::ssize(shape(node.outputs[0])), dim));
    for (const ValueId output : node.outputs)
      if (dim < std::ssize(shape(output))) dim_[output] = dim;
  }

  CompileState& state_;
  Graph& graph_;
  Table<ValueId, int> dim_;
  int64_t samples_ = 0;  // of a rank's microbatch
};

}  // namespace

void follow_samples(CompileState& state) {
  if (std::ranges::none_of(state.graph.nodes, [](const Node& node) { return is_view(*node.op); })) return;
  int64_t parts = state.microbatches();
  for (const std::string& axis : state.plan.batch_axes) parts *= state.plan.mesh.size(axis);
  if (parts > 1) Samples(state).run();
}

}  // namespace prun
