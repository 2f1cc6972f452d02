// Surprising fact: the mean of a matrix's means of rows equals that of its columns, because both average the same
// squares. Where ranks have parts of the rows, factor_norms takes the columns, and no further reduction is due.
#include "compile/factored_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "compile/ir_build.h"
#include "compile/matrix_split.h"
#include "ir/factored.h"
#include "ir/split_axes.h"

namespace prun {
namespace {

using sdk::FactoredParameter;

const int64_t kLine = kAlignBytes / dtype_bytes(Dtype::f32);

void add_axes(const CompileState& state, const std::string& more, std::string& axes) {
  for (const std::string& axis : split(more, ','))
    if (!axis.empty() && state.plan.mesh.size(axis) > 1) axes += (axes.empty() ? "" : ",") + axis;
}

// Returns the index of the vector over these axes, which it appends if there is none.
size_t index_of(const std::string& axes, FactoredParts& parts) {
  const auto at = std::ranges::find(parts.axes, axes);
  if (at != parts.axes.end()) return at - parts.axes.begin();
  parts.axes.push_back(axes);
  parts.elements.push_back(0);
  return parts.axes.size() - 1;
}

// Describes a parameter's means over a dim, which the means lack; -1 = none.
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
  if (parameter.split_dim == lacks) {  // only an axis of parts, such as experts, still divides the means
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
    for (size_t p = 0; p < parameters.size(); ++p)
      add(state_.graph.values[parameters[p]], state_.layouts[unit_].start[p]);
    for (FactoredParts* parts : {&made_.means, &made_.norms})
      for (int64_t& elements : parts->elements) elements = round_up(elements, kLine);
    for (const sdk::FactoredList& of : sdk::kFactoredLists) {
      std::vector<int64_t> list;
      for (const FactoredParameter& one : listed_) list.push_back(one.*of.member);
      made_.lists.set(of.name, list);
    }
    return std::move(made_);
  }

 private:
  // `start`: first element in the unit's vector of parameters.
  void add(const Value& value, int64_t start) {
    const Shape &part = value.type.shape, &whole = value.whole.empty() ? part : value.whole;
    const int dims = std::ssize(part);
    PRUN_CHECK(dims == 3 || SplitAxes(value.split_axis).part.empty(), value.name);  // experts have a dim of their own
    const MatrixSplit split = matrix_split(value);
    FactoredParameter one;
    one.start = start;
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
      std::tie(one.row_in, one.row_at) = mean(mean_of(value, dims - 1, "row_var"), by_columns ? joined : shards_);
      std::tie(one.column_in, one.column_at) = mean(mean_of(value, dims - 2, "col_var"), by_columns ? shards_ : joined);
    } else {
      std::tie(one.column_in, one.column_at) = mean(mean_of(value, -1, "variance"), shards_);
    }
    one.norm_in = static_cast<int64_t>(index_of(all, made_.norms));
    one.norm_at = made_.norms.elements[one.norm_in];
    made_.norms.elements[one.norm_in] += 2;
    listed_.push_back(one);
  }

  // Appends a mean to the vector over these axes; returns the vector's index and the mean's first element.
  std::pair<int64_t, int64_t> mean(Value value, const std::string& axes) {
    const size_t vector = index_of(axes, made_.means);
    const int64_t start = made_.means.elements[vector];
    made_.means.elements[vector] += value.count();
    made_.listed.push_back({std::move(value), vector, start});
    return {static_cast<int64_t>(vector), start};
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

void FactoredVectors::append(const FactoredParts& parts) {
  std::vector<Part>& of_unit = units_.emplace_back();
  for (size_t v = 0; v < parts.axes.size(); ++v) {
    int64_t& elements = elements_[parts.axes[v]];
    of_unit.push_back({parts.axes[v], elements, parts.elements[v]});
    elements += parts.elements[v];
  }
}

void FactoredVectors::add(const std::function<TensorId(const std::string&, int64_t)>& add) {
  for (const auto& [axes, elements] : elements_) {
    std::string name = axes.empty() ? name_ : fmt::format("{}.{}", name_, axes);
    std::ranges::replace(name, ',', '.');
    tensors_[axes] = add(name, elements);
  }
}

std::vector<TensorId> FactoredVectors::parts_of(Program& program, size_t unit, const std::string& unit_name) const {
  std::vector<TensorId> parts;
  for (const Part& part : units_[unit]) {
    const TensorId vector = tensors_.at(part.axes);
    const std::string name = fmt::format("{}.{}", unit_name, program.tensors[vector].name);
    const bool is_all = program.tensors[vector].count() == part.elements;
    parts.push_back(is_all ? vector : add_view(program, name, vector, part.start, {part.elements}));
  }
  return parts;
}

void place_factors(CompileState& state) {
  FactoredVectors vectors("factors");
  std::vector<UnitId> units;
  for (const UnitId unit : state.graph.units.ids()) {
    if (!is_factored(state, unit)) continue;
    units.push_back(unit);
    vectors.append(factored_unit(state, unit).means);
  }
  vectors.add([&](const std::string& name, int64_t elements) {
    return add_tensor(state.program, name, Role::optimizer, {state.master_dtype(), {elements}}, true,
                      state.plan.optimizer.site);
  });
  for (size_t u = 0; u < units.size(); ++u)
    state.storage[units[u]].factors = vectors.parts_of(state.program, u, state.unit_name(units[u]));
}

}  // namespace prun
