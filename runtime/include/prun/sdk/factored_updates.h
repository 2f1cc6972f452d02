// The attributes of Adafactor's ops list parameters, and the places of their means of squared gradients. A matrix has a
// mean for each row, over its columns, and for each column, over its rows; a vector has the square of each element.
//
//   factor_means   a rank's part of the gradients -> its part of the means, as sums
//   all_reduce     over the axes that divide rows or columns, or shard the vector of parameters
//   factor_norms   follows the means with the averages of earlier steps; sums squares of the update and the parameter
//   all_reduce     over these axes and those whose ranks have other matrices of the same parameter
//   adafactor      updates a rank's part of the parameters
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#ifdef __CUDACC__
#define PRUN_FACTORED __host__ __device__
#else
#define PRUN_FACTORED
#endif

namespace prun::sdk {

// Sizes are those of the part that the rank has, except whole_*. A vector is one row.
struct FactoredParameter {
  int64_t start = 0;                         // first element in the unit's vector of parameters
  int64_t leads = 1, rows = 1, columns = 1;  // leads: matrices, such as experts
  int64_t whole_rows = 1, whole_columns = 1, whole_count = 1;
  int64_t row_in = -1, row_at = 0;       // the operand with the means of rows, [leads, rows], and the place
                                         // there; row_in -1: a vector
  int64_t column_in = 0, column_at = 0;  // likewise, [leads, columns]
  int64_t norm_in = 0, norm_at = 0;      // two numbers: Σ update², Σ parameter²

  int64_t count() const { return leads * rows * columns; }
  bool is_matrix() const { return row_in >= 0; }
  // Returns whether this rank has all rows; otherwise the mean of a matrix's means is computed from its columns.
  bool has_all_rows() const { return rows == whole_rows; }
};

// The attributes: lists of integers, one for each parameter.
using FactoredMember = int64_t FactoredParameter::*;
struct FactoredList {
  const char* name;
  FactoredMember member;
};
inline constexpr FactoredList kFactoredLists[] = {{"starts", &FactoredParameter::start},
                                                  {"leads", &FactoredParameter::leads},
                                                  {"rows", &FactoredParameter::rows},
                                                  {"columns", &FactoredParameter::columns},
                                                  {"whole_rows", &FactoredParameter::whole_rows},
                                                  {"whole_columns", &FactoredParameter::whole_columns},
                                                  {"whole_count", &FactoredParameter::whole_count},
                                                  {"row_in", &FactoredParameter::row_in},
                                                  {"row_at", &FactoredParameter::row_at},
                                                  {"column_in", &FactoredParameter::column_in},
                                                  {"column_at", &FactoredParameter::column_at},
                                                  {"norm_in", &FactoredParameter::norm_in},
                                                  {"norm_at", &FactoredParameter::norm_at}};

// Reads the lists of an op's attributes; lists that are too short leave members as they are.
template <class Attributes>
std::vector<FactoredParameter> factored_parameters(const Attributes& attributes) {
  std::vector<FactoredParameter> parameters(attributes.integers("starts").size());
  for (const FactoredList& of : kFactoredLists) {
    const auto list = attributes.integers(of.name);
    for (size_t i = 0; i < std::min<size_t>(list.size(), parameters.size()); ++i) parameters[i].*of.member = list[i];
  }
  return parameters;
}

// Numbers of vectors that the lists of the three ops refer to.
struct FactoredOperands {
  int64_t means = 0, norms = 0;
};
inline FactoredOperands factored_operands(const std::vector<FactoredParameter>& parameters) {
  FactoredOperands operands;
  for (const FactoredParameter& one : parameters) {
    operands.means = std::max({operands.means, one.row_in + 1, one.column_in + 1});
    operands.norms = std::max(operands.norms, one.norm_in + 1);
  }
  return operands;
}

// Elements [begin, end) of a parameter that are in a rank's part of the vector, and the place of the first one there.
struct FactoredRange {
  int64_t begin = 0, end = 0, at = 0;
};
// `offset`: first element of the rank's part of the vector; `count`: its size.
inline FactoredRange range_in_shard(const FactoredParameter& one, int64_t offset, int64_t count) {
  const int64_t begin = std::max<int64_t>(offset - one.start, 0),
                end = std::min(offset + count - one.start, one.count());
  return begin < end ? FactoredRange{begin, end, one.start + begin - offset} : FactoredRange{};
}

// The step's numbers; formulas of torch.optim.Adafactor.
struct FactoredStep {
  double share = 1;  // of the new mean in the average
  double rate = 0;
};
// `t`: number of the update, from 1; `lr`: the learning rate.
PRUN_FACTORED inline FactoredStep factored_step(double t, double lr, double beta2_decay) {
  const double relative = 1 / std::sqrt(t);
  return {std::pow(t, beta2_decay), lr < relative ? lr : relative};
}

// Returns the factor of an update by the sums over all ranks. `count`: of the whole parameter's elements.
PRUN_FACTORED inline double factored_rate(const FactoredStep& step, double update_squares, double parameter_squares,
                                          double count, double eps2, double d) {
  const double update = std::sqrt(update_squares / count) / d, parameter = std::sqrt(parameter_squares / count);
  return step.rate * (parameter > eps2 ? parameter : eps2) / (update > 1 ? update : 1);
}

}  // namespace prun::sdk
