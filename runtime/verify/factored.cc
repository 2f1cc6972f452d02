// Adafactor's three ops on a unit: they list the same parameters, as the program's state describes them, read the same
// gradients, and hand on their vectors from one to the next.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ir/ops.h"
#include "prun/sdk/factored_updates.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

constexpr const char* kFactors = "means of squares";

bool is_at(const Program& program, const StateTensor& state, TensorId vector) {
  const Tensor &of = program.tensors[state.tensor], &there = program.tensors[vector];
  return of.buffer == there.buffer && of.byte_offset == there.byte_offset;
}

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

// Returns what is wrong with a listed parameter, compared with the state that it is.
std::string problem_of(const Program& program, const Op& update, const sdk::FactoredParameter& one,
                       const StateTensor& state) {
  const Shape& whole = state.shape;
  const size_t dims = whole.size();
  const bool matrix = dims > 1;
  if (one.is_matrix() != matrix) return matrix ? "takes a matrix for a vector" : "takes a vector for a matrix";
  if (one.count() != local_count(program, state))
    return fmt::format("lists {} of its {} elements", one.count(), local_count(program, state));
  if (one.whole_count != element_count(whole) || one.whole_columns != (dims > 0 ? whole.back() : 1) ||
      one.whole_rows != (matrix ? whole[dims - 2] : 1))
    return "divides by other sizes than the parameter's";
  const auto mean_at = [&](const char* kind, int64_t in, int64_t at, int64_t count) {
    const std::string name = fmt::format("{}{}.{}.{}", kOptimizerState, update.def->name, kind, state.name);
    return std::any_of(program.state.begin(), program.state.end(), [&](const StateTensor& mean) {
      return mean.name == name && mean.begin == at && local_count(program, mean) == count &&
             is_at(program, mean, update.reads[2 + in]);
    });
  };
  if (!mean_at(matrix ? "col_var" : "variance", one.column_in, one.column_at, one.leads * one.columns) ||
      (matrix && !mean_at("row_var", one.row_in, one.row_at, one.leads * one.rows)))
    return "takes other averages than those that belong to it";
  return "";
}

}  // namespace

const StateTensor* state_at(const OpContext& context, int64_t start) {
  const Program& program = *context.body.program;
  for (const StateTensor& state : program.state)
    if (state.begin == start && is_at(program, state, context.op.reads[1])) return &state;
  return nullptr;
}

void check_factors(const OpContext& context) {
  const BodyView& body = context.body;
  const Program& program = *body.program;
  const Op& update = context.op;
  const auto bad = [&](const std::string& what) { context.report(kFactors, what, ValueState()); };
  const std::vector<sdk::FactoredParameter> listed = sdk::factored_parameters(update.attrs);
  const auto [means, norms] = sdk::factored_operands(listed);
  for (const OpDef* kind : {&ops::factor_means, &ops::factor_norms}) {
    const Op* const op = only_op(body, *kind, update.reads[1]);
    if (op == nullptr) return bad(fmt::format("needs one {} of its parameters", kind->name));
    if (const std::string differs = difference(*op, update); !differs.empty())
      return bad(fmt::format("follows a {} that {}", kind->name, differs));
  }
  const Op &sums = *only_op(body, ops::factor_means, update.reads[1]),
           &follows = *only_op(body, ops::factor_norms, update.reads[1]);
  const auto hands_on = [](const std::vector<TensorId>& from, int64_t at, const std::vector<TensorId>& to,
                           int64_t there, int64_t count) {
    return std::equal(from.begin() + at, from.begin() + at + count, to.begin() + there);
  };
  if (!hands_on(sums.writes, 0, follows.reads, 2, means)) return bad("follows averages of other means");
  if (!hands_on(follows.writes, 0, update.reads, 2, means) ||
      !hands_on(follows.writes, 0, follows.reads, 2 + means, means))
    return bad("takes averages that are not those of its parameters");
  if (!hands_on(follows.writes, means, update.reads, 2 + means, norms))
    return bad("takes norms that are not those of its parameters");
  std::vector<std::pair<int64_t, int64_t>> places;  // of norms
  size_t found = 0;
  for (const StateTensor& state : program.state) {
    if (!is_at(program, state, update.reads[1])) continue;
    const auto one = std::find_if(listed.begin(), listed.end(), [&](const auto& p) { return p.start == state.begin; });
    if (one == listed.end()) return bad(fmt::format("does not update '{}'", state.name));
    found++;
    if (const std::string problem = problem_of(program, update, *one, state); !problem.empty())
      return bad(fmt::format("{}: '{}'", problem, state.name));
    const auto place = std::pair(one->norm_in, one->norm_at / 2);
    if (one->norm_at % 2 != 0 || std::find(places.begin(), places.end(), place) != places.end())
      return bad(fmt::format("has no norms of its own for '{}'", state.name));
    places.push_back(place);
    const bool sharded = !state.shard_axis.empty() && program.mesh.size(state.shard_axis) > 1;
    const std::string axis = sharded ? state.shard_axis : "", named = update.attrs.text("axis");
    const int64_t elements = program.tensors[state.tensor].count();
    if (axis != named || (sharded && update.attrs.integer("shard") != elements))
      return bad(fmt::format("updates a shard of {} elements over '{}', and '{}' has one of {} over '{}'",
                             update.attrs.integer("shard"), named, state.name, elements, axis));
  }
  if (found != listed.size()) bad("lists parameters that the unit does not have");
}

}  // namespace prun::verify
