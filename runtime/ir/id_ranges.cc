// Interval arithmetic over the ops that compute ids: data bound the ids that are looked up, a comparison gives 0 or 1,
// and a sum over n elements is at most n times as large.
//
// Surprising fact: one value outside the interval is tracked, too. Targets that a loss ignores arrive as -1, whatever
// they are in the data, and a model replaces them with nn.where before it looks up the targets.
#include "ir/id_ranges.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/ops.h"
#include "ir/pointwise.h"

namespace prun {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Range {
  double low = -kInfinity, high = kInfinity;
  std::optional<double> other;  // a value outside [low, high]

  bool known() const { return low > -kInfinity && high < kInfinity; }
};

// Returns the interval that also contains `other`.
Range whole(const Range& range) {
  if (!range.other) return range;
  return {std::min(range.low, *range.other), std::max(range.high, *range.other), std::nullopt};
}

Range hull(const Range& a, const Range& b) {
  Range result{std::min(a.low, b.low), std::max(a.high, b.high), a.other ? a.other : b.other};
  if (a.other && b.other && *a.other != *b.other) return whole({whole(a).low, whole(a).high, b.other});
  if (result.other && *result.other >= result.low && *result.other <= result.high) result.other.reset();
  return result;
}

double times(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }  // 0 · infinity is 0 here

Range product(const Range& a, const Range& b) {
  const double all[] = {times(a.low, b.low), times(a.low, b.high), times(a.high, b.low), times(a.high, b.high)};
  return {*std::min_element(std::begin(all), std::end(all)), *std::max_element(std::begin(all), std::end(all)), {}};
}

// Returns an unknown range if a float of this type does not count exactly so far.
Range counted(const Range& range, Dtype dtype) {
  const double most = dtype == Dtype::f32    ? 0x1p24
                      : dtype == Dtype::bf16 ? 0x1p8
                      : dtype == Dtype::f16  ? 0x1p11
                      : dtype == Dtype::i32  ? 0x1p31 - 1
                                             : 0x1p53;
  const Range every = whole(range);
  return every.low < -most || every.high > most ? Range{} : range;
}

// A comparison of a value with a number: 1 where they are equal, or 0 there if `unequal`.
struct Comparison {
  ValueId value;
  double number = 0;
  bool unequal = false;
};

// Facts about a value or about a result in a program. `value`: it is this value, perhaps converted; -1 = none.
struct Known {
  Range range;
  ValueId value = -1;
  std::optional<Comparison> compares;
};

class Evaluation {
 public:
  Evaluation(const sdk::PointwiseProgram& program, const std::vector<Known>& inputs) : inputs_(inputs) {
    results_.reserve(program.size());
    for (const sdk::PointwiseInstruction& one : program) {
      Known result{value(one), -1, std::nullopt};
      result.compares = comparison(one);
      results_.push_back(result);
    }
  }
  Known result() const { return results_.back(); }

 private:
  using Operand = sdk::PointwiseOperand;
  using Code = sdk::Pointwise;

  Known of(const Operand& operand) const {
    if (operand.kind == Operand::number) return {{operand.value, operand.value, {}}, -1, std::nullopt};
    return operand.kind == Operand::input ? inputs_[operand.index] : results_[operand.index];
  }

  std::optional<Comparison> comparison(const sdk::PointwiseInstruction& one) const {
    const Operand &a = one.operands[0], &b = one.operands[1];
    if (one.code == Code::equal && b.kind == Operand::number && of(a).value >= 0)
      return Comparison{of(a).value, b.value, false};
    if (one.code == Code::equal && a.kind == Operand::number && of(b).value >= 0)
      return Comparison{of(b).value, a.value, false};
    if (one.code == Code::sub && a == Operand{Operand::number, 0, 1} && of(b).compares) {
      Comparison result = *of(b).compares;
      result.unequal = !result.unequal;
      return result;
    }
    return std::nullopt;
  }

  // Returns the range of an operand of `where` without the value that the condition excludes.
  Range chosen(const Known& condition, const Known& x, bool where_true) const {
    Range range = x.range;
    const std::optional<Comparison>& compares = condition.compares;
    if (compares && range.other && x.value >= 0 && compares->value == x.value && compares->number == *range.other &&
        compares->unequal == where_true)
      range.other.reset();
    return range;
  }

  Range value(const sdk::PointwiseInstruction& one) const {
    if (one.code == Code::where) {
      const Known condition = of(one.operands[0]);
      return hull(chosen(condition, of(one.operands[1]), true), chosen(condition, of(one.operands[2]), false));
    }
    const Range a = whole(of(one.operands[0]).range);
    const Range b = sdk::function_of(one.code).operands > 1 ? whole(of(one.operands[1]).range) : Range{};
    switch (one.code) {
      case Code::add:
        return {a.low + b.low, a.high + b.high, {}};
      case Code::sub:
        return {a.low - b.high, a.high - b.low, {}};
      case Code::mul:
        return product(a, b);
      case Code::minimum:
        return {std::min(a.low, b.low), std::min(a.high, b.high), {}};
      case Code::maximum:
        return {std::max(a.low, b.low), std::max(a.high, b.high), {}};
      case Code::relu:
        return {std::max(a.low, 0.0), std::max(a.high, 0.0), {}};
      case Code::abs: {
        const double low = std::abs(a.low), high = std::abs(a.high);
        return {a.low <= 0 && a.high >= 0 ? 0 : std::min(low, high), std::max(low, high), {}};
      }
      case Code::sign:
        return {a.low >= 0 ? 0.0 : -1.0, a.high <= 0 ? 0.0 : 1.0, {}};
      case Code::less:
      case Code::less_equal:
      case Code::equal:
      case Code::sigmoid:
        return {0, 1, {}};
      default:
        return {};
    }
  }

  const std::vector<Known>& inputs_;
  std::vector<Known> results_;
};

class Ranges {
 public:
  explicit Ranges(const Graph& graph) : graph_(graph), known_(graph.values.size(), Known{}) {
    for (const ValueId id : graph.values.ids()) {
      known_[id].value = id;
      if (graph.values[id].kind == ValueKind::input) known_[id].range = of_data(graph.values[id].name);
    }
    for (const Node& node : graph.nodes) {
      if (node.outputs.empty()) continue;
      Known& known = known_[node.outputs[0]];
      if (node.op == &ops::cast) known = known_[node.inputs[0]];
      if (const std::optional<Known> computed = of_pointwise(node)) {
        known.range = computed->range;
        known.compares = computed->compares;
      } else {
        known.range = of_node(node);
      }
      known.range = counted(known.range, type(node.outputs[0]).dtype);
    }
  }
  const Range& operator[](ValueId id) const { return known_[id].range; }

 private:
  const TensorType& type(ValueId id) const { return graph_.values[id].type; }

  Range of_data(const std::string& input) {
    if (limits_.empty()) limits_ = id_limits(graph_);
    Range range;
    bool found = false;
    for (const IdLimit& limit : limits_) {
      if (limit.input != input) continue;
      const std::optional<double> other = limit.ignored ? std::optional<double>(-1) : std::nullopt;
      const double high = static_cast<double>(limit.size - 1);
      range = {0, found ? std::min(range.high, high) : high, !found || range.other == other ? other : std::nullopt};
      found = true;
    }
    return range;
  }

  Range of_node(const Node& node) const {
    const OpDef* op = node.op;
    if (node.inputs.empty()) return {};
    const Range x = known_[node.inputs[0]].range;
    if (op == &ops::cast || op == &ops::copy || op == &ops::reshape || op == &ops::permute || op == &ops::slice ||
        op == &ops::expand || op == &ops::gather_rows)
      return counted(x, type(node.inputs[0]).dtype);
    if (op == &ops::pad) {
      const double value = node.attrs.number("value", 0);
      return hull(x, {value, value, {}});
    }
    if (op == &ops::concat) {
      Range result = x;
      for (const ValueId other : node.inputs) result = hull(result, known_[other].range);
      return result;
    }
    const Shape& shape = type(node.inputs[0]).shape;
    if (op == &ops::cumsum) {
      const double n = static_cast<double>(shape[node.attrs.integer("dim")]);
      return {std::min(whole(x).low, whole(x).low * n), std::max(whole(x).high, whole(x).high * n), {}};
    }
    if (op == &ops::reduce_dims) {
      double n = 1;
      if (node.attrs.text("op") == "sum")
        for (const int64_t dim : node.attrs.integers("dims")) n *= static_cast<double>(shape[dim]);
      return {whole(x).low * n, whole(x).high * n, {}};
    }
    return {};
  }

  std::optional<Known> of_pointwise(const Node& node) const {
    const std::optional<sdk::PointwiseProgram> program = as_pointwise(*node.op, node.attrs, node.inputs.size());
    if (!program) return std::nullopt;
    std::vector<Known> inputs;
    inputs.reserve(node.inputs.size());
    for (const ValueId input : node.inputs) inputs.push_back(known_[input]);
    return Evaluation(*program, inputs).result();
  }

  const Graph& graph_;
  std::vector<IdLimit> limits_;
  Table<ValueId, Known> known_;
};

std::string text_of(const Range& range) {
  if (!range.known()) return "may be any numbers (no lookup bounds the data, or they exceed 2^24)";
  return fmt::format("are {:.0f} to {:.0f}{}", range.low, range.high,
                     range.other ? fmt::format(", or {:.0f} (ignored targets)", *range.other) : "");
}

}  // namespace

void check_computed_ids(const Graph& graph) {
  std::optional<Ranges> ranges;
  for (const Node& node : graph.nodes) {
    const bool table = node.op == &ops::embedding, rows = node.op == &ops::gather_rows;
    if (!table && !rows && node.op != &ops::cross_entropy) continue;
    const ValueId ids = node.inputs[table ? 0 : 1], looked_up = node.inputs[table ? 1 : 0];
    if (graph.values[ids].kind == ValueKind::input) continue;
    if (!ranges) ranges.emplace(graph);
    const Shape& shape = graph.values[looked_up].type.shape;
    const int64_t size = table ? shape.front() : rows ? shape[graph.values[ids].type.shape.size() - 1] : shape.back();
    const Range& range = (*ranges)[ids];
    if (range.low >= 0 && range.high < static_cast<double>(size) && (!range.other || !(table || rows))) continue;
    throw plan_error(fmt::format("the ids '{}' {}, and {} has {} {}; bound them with nn.maximum(ids, 0) and "
                                 "nn.minimum(ids, {})",
                                 graph.values[ids].name, text_of(range),
                                 table  ? fmt::format("the table '{}'", graph.values[looked_up].name)
                                 : rows ? fmt::format("'{}'", graph.values[looked_up].name)
                                        : "the loss",
                                 size, table || rows ? "rows" : "logits", size - 1),
                     node.site);
  }
}

}  // namespace prun
