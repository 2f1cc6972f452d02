// Evaluates a rule from left to right, once per checked call.
#include "ir/shape_rule.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "ir/factored.h"
#include "ir/ops/rules.h"

namespace prun {
namespace {

using ops::Types;

std::string text(const TensorType& type) { return fmt::format("{}{}", dtype_name(type.dtype), shape_text(type.shape)); }

// Splits at `mark` outside of brackets, and trims spaces from the parts.
std::vector<std::string_view> parts_of(std::string_view list, char mark) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= list.size(); i++) {
    if (i < list.size() && list[i] != mark) {
      depth += list[i] == '[' ? 1 : list[i] == ']' ? -1 : 0;
      continue;
    }
    if (i < list.size() && depth > 0) continue;
    std::string_view part = list.substr(begin, i - begin);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    if (!part.empty()) parts.push_back(part);
    begin = i + 1;
  }
  return parts;
}

std::string same_count(const TensorType& a, const TensorType& b) {
  if (element_count(a.shape) == element_count(b.shape)) return "";
  return fmt::format("{} and {} should have as many elements", text(a), text(b));
}

std::string has_count(const TensorType& type, int64_t count) {
  return element_count(type.shape) == count ? "" : fmt::format("{} should have {} elements", text(type), count);
}

std::string too_few(const Types& reads, const Types& writes, size_t least_reads, size_t least_writes) {
  if (reads.size() >= least_reads && writes.size() >= least_writes) return "";
  return fmt::format("it reads {} and writes {} tensors, {} and {} are the least", reads.size(), writes.size(),
                     least_reads, least_writes);
}

class Fit {
 public:
  explicit Fit(const Attrs& attrs) : attrs_(attrs) {}

  std::string check(std::string_view rule, const Types& reads, const Types& writes) {
    const std::vector<std::string_view> sentences = parts_of(rule, ';');
    const size_t arrow = sentences[0].find("->");
    const auto from = parts_of(sentences[0].substr(0, arrow), ','), to = parts_of(sentences[0].substr(arrow + 2), ',');
    const auto needed = [](const std::vector<std::string_view>& operands) {
      size_t all = 0;
      for (std::string_view operand : operands)
        all += operand == "..." || operand.substr(0, operand.find(' ')).ends_with('?') ? 0 : 1;
      return all;
    };
    std::string problem = too_few(reads, writes, needed(from), needed(to));
    for (size_t i = 0; i < std::min(from.size(), reads.size()) && problem.empty(); i++)
      problem = operand(from[i], reads[i]);
    for (size_t i = 0; i < std::min(to.size(), writes.size()) && problem.empty(); i++)
      problem = operand(to[i], writes[i]);
    if (sentences.size() > 1 && problem.empty())
      for (std::string_view equation : parts_of(sentences[1], ',')) {
        const size_t sign = equation.find('=');
        const std::string_view left = parts_of(equation.substr(0, sign), ',')[0],
                               right = parts_of(equation.substr(sign + 1), ',')[0];
        if (value(left) != value(right))
          return fmt::format("{} is {}, and {} is {}: they should be equal", left, value(left), right, value(right));
      }
    return problem;
  }

 private:
  std::string operand(std::string_view rule, const TensorType& type) {
    const size_t space = std::min(rule.find(' '), rule.size());
    std::string_view name = rule.substr(0, space), pattern = rule.substr(std::min(space + 1, rule.size()));
    if (name.ends_with('?')) name.remove_suffix(1);
    named_[name] = &type;
    if (pattern.starts_with('#')) return has_count(type, value(pattern.substr(1), element_count(type.shape)));
    if (pattern.starts_with("[..,")) return rows_of(pattern.substr(4, pattern.find(']') - 4), type);
    if (pattern.starts_with('[')) return dims(pattern, type);
    if (pattern.empty()) return "";
    const size_t gap = pattern.find(' ');
    const std::string_view relation = pattern.substr(0, gap);
    const TensorType& other = *named_.at(pattern.substr(gap + 1));
    if (relation == "as")
      return other.shape == type.shape ? "" : fmt::format("{} and {} should have one shape", text(other), text(type));
    if (relation == "is" && other.dtype != type.dtype)
      return fmt::format("{} and {} should have one type", text(other), text(type));
    return same_count(other, type);
  }

  std::string rows_of(std::string_view size, const TensorType& type) {
    const int64_t last = value(size, ops::last_dim(type)), rows = value("R", ops::row_count(type));
    const std::string problem = has_count(type, rows * last);
    if (!problem.empty() || ops::last_dim(type) == last) return problem;
    return fmt::format("{} should have rows of {} elements", text(type), last);
  }

  std::string dims(std::string_view pattern, const TensorType& type) {
    std::vector<std::string_view> sizes = parts_of(pattern.substr(1, pattern.find(']') - 1), ',');
    if (pattern.ends_with('t') && attrs_.integer("transpose") != 0) std::swap(sizes[sizes.size() - 2], sizes.back());
    const bool fits = sizes.size() == type.shape.size();
    Shape shape;
    for (size_t i = 0; i < sizes.size(); i++)
      shape.push_back(value(sizes[i], fits ? std::optional<int64_t>(type.shape[i]) : std::nullopt));
    return shape == type.shape ? "" : fmt::format("{} should be {}", text(type), shape_text(shape));
  }

  // Evaluates an expression of `+` and `*`; a single size without a value is bound to `found`.
  int64_t value(std::string_view expression, std::optional<int64_t> found = std::nullopt) {
    if (found && is_size(expression)) return sizes_.emplace(expression, *found).first->second;
    int64_t sum = 0;
    for (std::string_view product : parts_of(expression, '+')) {
      int64_t factors = 1;
      for (std::string_view factor : parts_of(product, '*')) factors *= factor_of(factor);
      sum += factors;
    }
    return sum;
  }

  static bool is_size(std::string_view word) { return word.size() == 1 && word[0] >= 'A' && word[0] <= 'Z'; }

  int64_t factor_of(std::string_view word) const {
    const auto size = sizes_.find(word);
    if (size != sizes_.end()) return size->second;
    if (is_size(word)) return -1;
    if (word[0] >= '0' && word[0] <= '9') return std::stoll(std::string(word));
    const std::string name(word);
    if (!attrs_.has(name)) return name == "kv_heads" ? attrs_.integer("heads", 1) : 1;
    const Attr& attr = attrs_.values().at(name);
    if (std::holds_alternative<int64_t>(attr)) return std::get<int64_t>(attr);
    return std::ssize(attrs_.numbers(name));
  }

  const Attrs& attrs_;
  std::map<std::string_view, const TensorType*> named_;
  std::map<std::string_view, int64_t> sizes_;
};

// Operands: updates of whole matrices, param, clip?; the write has the parameters' size.
std::string applied_problem(const Types& reads, const Types& writes) {
  std::string problem = too_few(reads, writes, 2, 1);
  if (problem.empty()) problem = same_count(reads[1], writes[0]);
  if (problem.empty() && reads.size() > 2) problem = has_count(reads.back(), 1);
  return problem;
}

// Returns whether the vectors have the parameter's means and norms; `norms` is null if the op has none.
bool holds(const sdk::FactoredParameter& parameter, const TensorType* means, const TensorType* norms) {
  const auto fits = [](const TensorType* vectors, int64_t vector, int64_t start, int64_t count) {
    return vector >= 0 && start >= 0 && count > 0 && start <= element_count(vectors[vector].shape) - count;
  };
  const auto& [start, leads, rows, columns, whole_rows, whole_columns, whole_count, row_in, row_at, column_in,
               column_at, norm_in, norm_at] = parameter;
  return start >= 0 && leads > 0 && rows > 0 && columns > 0 && whole_rows > 0 && whole_columns > 0 && whole_count > 0 &&
         norm_in >= 0 && fits(means, column_in, column_at, leads * columns) &&
         (row_in < 0 || fits(means, row_in, row_at, leads * rows)) &&
         (norms == nullptr || fits(norms, norm_in, norm_at, 2));
}

// Operands: grad, param, then the vectors to which the lists of prun/sdk/factored_updates.h refer, and clip?.
std::string factored_problem(const OpDef& op, const Types& reads, const Types& writes, const Attrs& attrs) {
  const std::vector<sdk::FactoredParameter> parameters = sdk::factored_parameters(attrs);
  const int64_t means = sdk::factored_operands(parameters).means;
  const bool clips = attrs.integer("clipped") != 0;
  OperandCounts due = factored_counts(op, parameters);
  if (clips) ++due.reads;
  if (reads.size() != due.reads || writes.size() != due.writes || parameters.empty())
    return fmt::format("it reads {} and writes {} tensors, and its lists of {} parameters need {} and {}", reads.size(),
                       writes.size(), parameters.size(), due.reads, due.writes);
  std::string problem = same_count(reads[0], reads[1]);
  if (&op == &ops::adafactor && problem.empty()) problem = same_count(reads[1], writes[0]);
  if (&op == &ops::factor_norms)
    for (int64_t v = 0; v < means; ++v)
      for (const TensorType& type : {reads[2 + means + v], writes[v]})
        if (problem.empty()) problem = same_count(reads[2 + v], type);
  if (clips && problem.empty()) problem = has_count(reads.back(), 1);
  const TensorType* const of_means = &op == &ops::factor_means ? writes.data() : &reads[2];
  const TensorType* const of_norms = &op == &ops::factor_means   ? nullptr
                                     : &op == &ops::factor_norms ? &writes[means]
                                                                 : &reads[2 + means];
  for (const sdk::FactoredParameter& parameter : parameters)
    if (problem.empty() && !holds(parameter, of_means, of_norms))
      problem = fmt::format("its lists place the means of the parameter at {} beyond a vector", parameter.start);
  return problem;
}

// Operands: grad, param, states, clip?; every write, including a copy, has the parameters' size.
std::string optimizer_problem(const OptimizerTraits& traits, const Types& reads, const Types& writes) {
  if (traits.direction != nullptr) return applied_problem(reads, writes);
  const size_t casts = traits.casts ? 1 : 0, least = traits.slots_if.empty() ? traits.slots.size() : 0;
  std::string problem = too_few(reads, writes, 2 + least, 1 + least + casts);
  if (!problem.empty()) return problem;
  const size_t updated = writes.size() - casts;
  for (size_t i = 1; i <= updated && i < reads.size() && problem.empty(); i++) problem = same_count(reads[0], reads[i]);
  for (const TensorType& type : writes)
    if (problem.empty()) problem = same_count(reads[0], type);
  if (problem.empty() && reads.size() > 1 + updated) problem = has_count(reads.back(), 1);
  return problem;
}

// Compares the writes with the types that the model's own rule infers.
std::string inference_problem(const OpDef& op, const Types& reads, const Types& writes, const Attrs& attrs) {
  // These ops only move dims.
  const bool pieces = attrs.has("pieces") || attrs.has("dims") || attrs.has("order") || attrs.has("dim");
  try {
    const Types expected = op.infer(reads, attrs);
    if (expected.size() != writes.size())
      return fmt::format("it has {} outputs, and {} are written", expected.size(), writes.size());
    for (size_t i = 0; i < expected.size(); i++)
      if (expected[i].dtype != writes[i].dtype || !same_count(expected[i], writes[i]).empty() ||
          (pieces && expected[i].shape.size() == writes[i].shape.size() && expected[i].shape != writes[i].shape))
        return fmt::format("it makes {}, and {} is written", text(expected[i]), text(writes[i]));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

std::string shape_problem(const OpDef& op, const Types& reads, const Types& writes, const Attrs& attrs) {
  if (op.optimizer != nullptr && op.optimizer->factored) return factored_problem(op, reads, writes, attrs);
  if (op.optimizer != nullptr) return optimizer_problem(*op.optimizer, reads, writes);
  if (!op.shapes.empty()) return Fit(attrs).check(op.shapes, reads, writes);
  return op.infer != nullptr ? inference_problem(op, reads, writes, attrs) : "";
}

}  // namespace prun
