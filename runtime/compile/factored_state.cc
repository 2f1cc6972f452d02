// Surprising fact: the mean of a matrix's means of rows equals that of its columns, because both average the same
// squares. Where ranks have parts of the rows, factor_norms takes the columns, and no further reduction is due.
#include "compile/factored_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "compile/matrix_split.h"
#include "ir/split_axes.h"
#include "prun/sdk/factored_updates.h"

namespace prun {
namespace {

using sdk::FactoredParameter;

const int64_t kLine = kAlignBytes / dtype_bytes(Dtype::f32);

void add_axes(const CompileState& state, const std::string& more, std::string& axes) {
  for (const std::string& axis : split(more, ','))
    if (!axis.empty() && state.plan.mesh.size(axis) > 1) axes += (axes.empty() ? "" : ",") + axis;
}

// Returns the index of these axes, which it appends if they are new.
size_t index_of(const std::string& axes, std::vector<std::string>& all, std::vector<int64_t>& elements) {
  const auto at = std::ranges::find(all, axes);
  if (at != all.end()) return at - all.begin();
  all.push_back(axes);
  elements.push_back(0);
  return all.size() - 1;
}

// Returns the value of a parameter's means, which lack the dim; -1 = none.
Value mean_of(const Value& parameter, int lacks, const char* kind) {
  Value mean;
  mean.name = fmt::format("{}.{}", kind, parameter.name);
  mean.type = parameter.type;
  mean.whole = parameter.whole;
  mean.split_axis = parameter.split_axis;
  mean.split_dim = parameter.split_dim;
  mean.grain = parameter.grain;
  mean.group = parameter.group;
  if (lacks < 0 || parameter.split_dim + 1 == std::ssize(parameter.type.shape)) mean.blocks = parameter.blocks;
  if (lacks < 0) return mean;
  mean.type.shape.erase(mean.type.shape.begin() + lacks);
  if (!mean.whole.empty()) mean.whole.erase(mean.whole.begin() + lacks);
  if (parameter.split_dim == lacks) {  // whole on every rank, but for parts such as experts
    mean.split_axis = SplitAxes(parameter.split_axis).part;
    mean.split_dim = 0;
    mean.grain = 1;
    mean.blocks.clear();
    if (mean.split_axis.empty()) mean.whole.clear();
  } else if (parameter.split_dim > lacks) {
    mean.split_dim -= 1;
  }
  return mean;
}

class Builder {
 public:
  Builder(const CompileState& state, UnitId unit) : state_(state), unit_(unit) {
    for (const std::string& axis : state.storage[unit].axes()) add_axes(state, axis, shards_);
  }

  FactoredUnit build() {
    const std::vector<ValueId>& parameters = state_.graph.units[unit_].parameters;
    for (size_t p = 0; p < parameters.size(); ++p) add(p, state_.graph.values[parameters[p]]);
    for (std::vector<int64_t>* list : {&made_.mean_elements, &made_.norm_elements})
      for (int64_t& elements : *list) elements = round_up(elements, kLine);
    for (const sdk::FactoredList& of : sdk::kFactoredLists) {
      std::vector<int64_t> list;
      for (const FactoredParameter& one : listed_) list.push_back(one.*of.member);
      made_.lists.set(of.name, list);
    }
    return std::move(made_);
  }

 private:
  void add(size_t number, const Value& value) {
    const Shape &part = value.type.shape, &whole = value.whole.empty() ? part : value.whole;
    const int dims = std::ssize(part);
    const MatrixSplit split = matrix_split(value);
    FactoredParameter one;
    one.start = state_.layouts[unit_].start[number];
    one.columns = one.whole_columns = 1;
    if (dims > 0) one.columns = part.back(), one.whole_columns = whole.back();
    if (dims > 1) one.rows = part[dims - 2], one.whole_rows = whole[dims - 2];
    one.leads = element_count(part) / (one.rows * one.columns);
    one.whole_count = element_count(whole);
    std::string joined = shards_, all = shards_;
    add_axes(state_, split.joined, joined);
    add_axes(state_, split.joined, all);
    add_axes(state_, split.apart, all);
    if (dims > 1) {
      const bool by_columns = value.split_dim + 1 == dims;  // of the two dims the one that is split, if any is
      const auto [row_in, row_at] =
          mean(number, mean_of(value, dims - 1, "row_var"), by_columns ? joined : shards_, one.leads * one.rows);
      one.row_in = row_in, one.row_at = row_at;
      const auto [column_in, column_at] =
          mean(number, mean_of(value, dims - 2, "col_var"), by_columns ? shards_ : joined, one.leads * one.columns);
      one.column_in = column_in, one.column_at = column_at;
    } else {
      const auto [column_in, column_at] = mean(number, mean_of(value, -1, "variance"), shards_, one.columns);
      one.column_in = column_in, one.column_at = column_at;
    }
    one.norm_in = static_cast<int64_t>(index_of(all, made_.norm_axes, made_.norm_elements));
    one.norm_at = made_.norm_elements[one.norm_in];
    made_.norm_elements[one.norm_in] += 2;
    listed_.push_back(one);
  }

  struct Place {
    int64_t in, at;
  };
  Place mean(size_t number, Value value, const std::string& axes, int64_t elements) {
    const size_t in = index_of(axes, made_.mean_axes, made_.mean_elements);
    const int64_t at = made_.mean_elements[in];
    made_.mean_elements[in] += elements;
    made_.means.push_back({std::move(value), number, in, at});
    return {static_cast<int64_t>(in), at};
  }

  const CompileState& state_;
  UnitId unit_;
  std::string shards_;  // axes over which each rank has a shard of the unit's vector
  FactoredUnit made_;
  std::vector<FactoredParameter> listed_;
};

}  // namespace

FactoredUnit factored_unit(const CompileState& state, UnitId unit) { return Builder(state, unit).build(); }

bool is_factored(const CompileState& state, UnitId unit) {
  return state.trains(unit) && state.optimizer_of(unit).op->optimizer->factored;
}

void place_factors(CompileState& state) {
  FactoredVectors vectors;
  std::vector<std::pair<UnitId, FactoredUnit>> units;
  std::vector<std::vector<int64_t>> starts;
  for (const UnitId unit : state.graph.units.ids()) {
    if (!is_factored(state, unit)) continue;
    units.emplace_back(unit, factored_unit(state, unit));
    const FactoredUnit& of = units.back().second;
    std::vector<int64_t>& firsts = starts.emplace_back();
    for (size_t v = 0; v < of.mean_axes.size(); ++v)
      firsts.push_back(vectors.append(of.mean_axes[v], of.mean_elements[v]));
  }
  std::map<std::string, TensorId> tensors;
  const auto name_of = [](const std::string& axes) {
    std::string name = axes.empty() ? "factors" : "factors." + axes;
    std::ranges::replace(name, ',', '.');
    return name;
  };
  for (const auto& [axes, elements] : vectors.elements())
    tensors[axes] = add_tensor(state.program, name_of(axes), Role::optimizer, {state.master_dtype(), {elements}}, true,
                               state.plan.optimizer.site);
  for (size_t u = 0; u < units.size(); ++u) {
    const auto& [unit, of] = units[u];
    for (size_t v = 0; v < of.mean_axes.size(); ++v)
      state.storage[unit].factors.push_back(
          add_view(state.program, fmt::format("{}.{}", state.unit_name(unit), name_of(of.mean_axes[v])),
                   tensors.at(of.mean_axes[v]), starts[u][v], {of.mean_elements[v]}));
  }
}

}  // namespace prun
