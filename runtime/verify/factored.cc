// Adafactor's three ops on a unit: they list the same parameters, as the program's state describes them, read the same
// gradients, and hand on their vectors from one to the next.
#include "ir/factored.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "base/text.h"
#include "ir/ops.h"
#include "ir/split_axes.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

constexpr const char* kFactors = "means of squares";

// Returns the op of this kind in the body that reads the parameters; null = none, or several.
const Op* only_op(const BodyView& body, const OpDef& kind, TensorId parameters) {
  const Op* found = nullptr;
  for (const Stream& stream : body.body->streams)
    for (const Op& op : stream.ops) {
      if (!op.is(kind) || op.reads.size() < 2 || op.reads[1] != parameters) continue;
      if (found != nullptr) return nullptr;
      found = &op;
    }
  return found;
}

// Returns how an op that prepares the update differs from it; "" = it does not.
std::string difference(const Op& op, const Op& update) {
  for (const sdk::FactoredList& of : sdk::kFactoredLists)
    if (op.attrs.integers(of.name) != update.attrs.integers(of.name)) return fmt::format("lists other {}", of.name);
  for (const char* number : {"shard", "clipped"})
    if (op.attrs.integer(number) != update.attrs.integer(number)) return fmt::format("has another {}", number);
  for (const char* number : {"eps1", "beta2_decay"})
    if (op.attrs.number(number) != update.attrs.number(number)) return fmt::format("has another {}", number);
  if (op.attrs.text("axis") != update.attrs.text("axis")) return "takes a shard over another axis";
  if (op.reads[0] != update.reads[0]) return "reads other gradients";
  if (update.attrs.integer("clipped") != 0 && op.reads.back() != update.reads.back()) return "clips by another norm";
  return "";
}

std::set<std::string> larger_axes(const Program& program, const std::string& axes) {
  std::set<std::string> larger;
  for (const std::string& axis : split(axes, ','))
    if (!axis.empty() && program.mesh.size(axis) > 1) larger.insert(axis);
  return larger;
}

// Returns whether the state tensor describes the parameter's means without a dim, by shape and by the ranks that hold
// them; `lacks`: the dim, -1 = none.
bool is_mean_of(const Program& program, const StateTensor& mean, const StateTensor& parameter, int lacks) {
  Shape shape = parameter.shape;
  if (lacks >= 0) shape.erase(shape.begin() + lacks);
  const SplitAxes axes(parameter.split_axis);
  const bool joins = parameter.split_dim == lacks;  // all ranks that split the dim have its means
  std::set<std::string> replicated(parameter.replicated.begin(), parameter.replicated.end());
  replicated.merge(larger_axes(program, parameter.shard_axis));
  if (joins) replicated.merge(larger_axes(program, axes.split));
  return mean.shape == shape && mean.split_axis == (joins ? axes.part : parameter.split_axis) &&
         mean.shard_axis.empty() && mean.drift == parameter.drift && mean.copy == parameter.copy &&
         std::set<std::string>(mean.replicated.begin(), mean.replicated.end()) == replicated;
}

// Compares a listed parameter with its description in Program::state; "" = they agree.
std::string problem_of(const Program& program, const Op& update, const sdk::FactoredParameter& listed,
                       const StateTensor& parameter) {
  const Shape& whole = parameter.shape;
  const int dims = static_cast<int>(whole.size());
  const bool matrix = dims > 1;
  if (listed.is_matrix() != matrix) return matrix ? "takes a matrix for a vector" : "takes a vector for a matrix";
  if (listed.count() != local_count(program, parameter))
    return fmt::format("lists {} of its {} elements", listed.count(), local_count(program, parameter));
  if (listed.whole_count != element_count(whole) || listed.whole_columns != (dims > 0 ? whole.back() : 1) ||
      listed.whole_rows != (matrix ? whole[dims - 2] : 1))
    return "divides by other sizes than the parameter's";
  const auto mean_at = [&](const char* kind, int64_t vector, int64_t start, int64_t count, int lacks) {
    const std::string name = fmt::format("{}{}.{}.{}", kOptimizerState, update.def->name, kind, parameter.name);
    return std::any_of(program.state.begin(), program.state.end(), [&](const StateTensor& mean) {
      return mean.name == name && mean.begin == start && local_count(program, mean) == count &&
             is_in(program, mean, program.tensors[update.reads[2 + vector]]) &&
             is_mean_of(program, mean, parameter, lacks);
    });
  };
  const int64_t columns = listed.leads * listed.columns, rows = listed.leads * listed.rows;
  const bool right = matrix ? mean_at("row_var", listed.row_in, listed.row_at, rows, dims - 1) &&
                                  mean_at("col_var", listed.column_in, listed.column_at, columns, dims - 2)
                            : mean_at("variance", listed.column_in, listed.column_at, columns, -1);
  return right ? "" : "takes other averages than those that belong to it";
}

// Returns whether two of the listed means, or two norms, are in one place.
bool overlap(const std::vector<sdk::FactoredParameter>& listed) {
  std::vector<std::array<int64_t, 4>> places;  // 0 = mean, 1 = norm; vector, start, end
  for (const sdk::FactoredParameter& one : listed) {
    if (one.is_matrix()) places.push_back({0, one.row_in, one.row_at, one.row_at + one.leads * one.rows});
    places.push_back({0, one.column_in, one.column_at, one.column_at + one.leads * one.columns});
    places.push_back({1, one.norm_in, one.norm_at, one.norm_at + 2});
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); i++)
    if (places[i][0] == places[i - 1][0] && places[i][1] == places[i - 1][1] && places[i][2] < places[i - 1][3])
      return true;
  return false;
}

// Returns how the operands of the three ops do not continue each other; "" = they do.
std::string break_between(const Op& means, const Op& norms, const Op& update, const sdk::FactoredOperands& counts) {
  const auto continues = [](const std::vector<TensorId>& from, int64_t first, const std::vector<TensorId>& to,
                            int64_t at, int64_t count) {
    return std::equal(from.begin() + first, from.begin() + first + count, to.begin() + at);
  };
  if (!continues(means.writes, 0, norms.reads, 2, counts.means)) return "follows averages of other means";
  if (!continues(norms.writes, 0, update.reads, 2, counts.means) ||
      !continues(norms.writes, 0, norms.reads, 2 + counts.means, counts.means))
    return "takes averages that are not those of its parameters";
  if (!continues(norms.writes, counts.means, update.reads, 2 + counts.means, counts.norms))
    return "takes norms that are not those of its parameters";
  return "";
}

}  // namespace

const StateTensor* state_at(const OpContext& context, int64_t start) {
  const Program& program = *context.body.program;
  for (const StateTensor& state : program.state)
    if (state.begin == start && is_in(program, state, *context.read_tensors[1])) return &state;
  return nullptr;
}

void check_factors(const OpContext& context) {
  const BodyView& body = context.body;
  const Program& program = *body.program;
  const Op& update = context.op;
  const auto bad = [&](const std::string& what) { context.report(kFactors, what, ValueState()); };
  const std::vector<sdk::FactoredParameter> listed = sdk::factored_parameters(update.attrs);
  std::vector<const Op*> before;
  for (const OpDef* kind : {&ops::factor_means, &ops::factor_norms}) {
    before.push_back(only_op(body, *kind, update.reads[1]));
    if (before.back() == nullptr) return bad(fmt::format("needs one {} of its parameters", kind->name));
    if (const std::string differs = difference(*before.back(), update); !differs.empty())
      return bad(fmt::format("follows a {} that {}", kind->name, differs));
  }
  if (const std::string problem = break_between(*before[0], *before[1], update, sdk::factored_operands(listed));
      !problem.empty())
    return bad(problem);
  if (overlap(listed)) return bad("has two means or norms in one place");
  size_t found = 0;
  for (const StateTensor& state : program.state) {
    if (!is_in(program, state, *context.read_tensors[1])) continue;
    const auto one = std::find_if(listed.begin(), listed.end(), [&](const auto& p) { return p.start == state.begin; });
    if (one == listed.end()) return bad(fmt::format("does not update '{}'", state.name));
    found++;
    if (const std::string problem = problem_of(program, update, *one, state); !problem.empty())
      return bad(fmt::format("{}: '{}'", problem, state.name));
    if (const std::string problem = shard_problem(program, update.attrs, state); !problem.empty()) return bad(problem);
  }
  if (found != listed.size()) bad("lists parameters that the unit does not have");
}

}  // namespace prun::verify
