// Adafactor by the formulas in the documentation of torch.optim.Adafactor: means of squared gradients over rows and
// columns, their running averages, and the update.
#include <algorithm>
#include <cmath>

#include "device/share.h"
#include "kernels/reference/rules.h"
#include "kernels/reference/settings.h"
#include "prun/sdk/factored_updates.h"

namespace prun::reference {
namespace {

using sdk::FactoredParameter;

int64_t shard_begin(const Call& c) {
  return share_along(c.memory, c.attrs.text("axis")).index * c.attrs.integer("shard");
}

bool clips(const Call& c) { return c.attrs.integer("clipped") != 0; }
bool skips(const Call& c) { return clips(c) && c.reads.back()[0] < 0; }

// Calls f(i, lead, row, column) for each element of the parameter that the rank has; `i`: its place in the shard.
template <class F>
void each_element(const Call& c, const FactoredParameter& one, const F& f) {
  const sdk::FactoredRange range = sdk::range_in_shard(one, shard_begin(c), c.reads[0].count());
  for (int64_t e = range.begin; e < range.end; ++e)
    f(range.at + e - range.begin, e / one.columns / one.rows, e / one.columns % one.rows, e % one.columns);
}

void factor_means(Call& c) {
  for (const FactoredParameter& one : sdk::factored_parameters(c.attrs)) {
    const double of_row = 1 / static_cast<double>(one.whole_columns),
                 of_column = one.is_matrix() ? 1 / static_cast<double>(one.whole_rows) : 1;
    each_element(c, one, [&](int64_t i, int64_t lead, int64_t row, int64_t column) {
      const double g = c.reads[0][i] * (clips(c) ? c.reads.back()[0] : 1), square = g * g;
      if (one.is_matrix()) c.writes[one.row_in][one.row_at + lead * one.rows + row] += square * of_row;
      c.writes[one.column_in][one.column_at + lead * one.columns + column] += square * of_column;
    });
  }
}

// Computes updates from averages of means: of squares of g, the estimate row·column / max(mean of rows, eps1).
class Updates {
 public:
  // `averages`: the operands that the parameters' lists refer to.
  Updates(const Call& c, const std::vector<Array>& operands, size_t first, const FactoredParameter& one)
      : c_(c), operands_(operands), first_(first), one_(one), eps1_(c.attrs.number("eps1")) {
    for (int64_t lead = 0; one.is_matrix() && lead < one.leads; ++lead) {
      double sum = 0;
      const int64_t count = one.has_all_rows() ? one.rows : one.columns;
      for (int64_t k = 0; k < count; ++k) sum += one.has_all_rows() ? row(lead, k) : column(lead, k);
      means_.push_back(sum / static_cast<double>(one.has_all_rows() ? one.whole_rows : one.whole_columns));
    }
  }
  double at(int64_t i, int64_t lead, int64_t r, int64_t k) const {
    const double g = c_.reads[0][i] * (clips(c_) ? c_.reads.back()[0] : 1);
    const double square =
        one_.is_matrix() ? row(lead, r) * column(lead, k) / std::max(means_[lead], eps1_) : column(lead, k);
    return g / std::sqrt(std::max(square, eps1_ * eps1_));
  }

 private:
  double row(int64_t lead, int64_t r) const {
    return operands_[first_ + one_.row_in][one_.row_at + lead * one_.rows + r];
  }
  double column(int64_t lead, int64_t k) const {
    return operands_[first_ + one_.column_in][one_.column_at + lead * one_.columns + k];
  }
  const Call& c_;
  const std::vector<Array>& operands_;
  size_t first_;
  const FactoredParameter& one_;
  double eps1_;
  std::vector<double> means_;
};

sdk::FactoredStep step_of(const Call& c, double rate) {
  return sdk::factored_step(static_cast<double>(c.memory.table->update + 1), rate, c.attrs.number("beta2_decay"));
}

void factor_norms(Call& c) {
  const std::vector<FactoredParameter> parameters = sdk::factored_parameters(c.attrs);
  const size_t means = sdk::factored_operands(parameters).means;
  for (size_t v = 0; v < means; ++v) c.writes[v].v = c.reads[2 + means + v].v;
  if (skips(c)) return;
  const double share = step_of(c, 0).share;
  for (size_t v = 0; v < means; ++v)
    for (int64_t i = 0; i < c.writes[v].count(); ++i) c.writes[v][i] += share * (c.reads[2 + v][i] - c.writes[v][i]);
  for (const FactoredParameter& one : parameters) {
    const Updates updates(c, c.writes, 0, one);
    Array& norms = c.writes[means + one.norm_in];
    each_element(c, one, [&](int64_t i, int64_t lead, int64_t row, int64_t column) {
      const double update = updates.at(i, lead, row, column), parameter = c.reads[1][i];
      norms[one.norm_at] += update * update;
      norms[one.norm_at + 1] += parameter * parameter;
    });
  }
}

void adafactor(Call& c) {
  c.writes[0].v = c.reads[1].v;
  if (skips(c)) return;
  const std::vector<FactoredParameter> parameters = sdk::factored_parameters(c.attrs);
  const size_t means = sdk::factored_operands(parameters).means;
  const double eps2 = c.attrs.number("eps2"), d = c.attrs.number("d");
  const Settings settings(c, 0);
  for (const FactoredParameter& one : parameters) {
    const Updates updates(c, c.reads, 2, one);
    const Array& norms = c.reads[2 + means + one.norm_in];
    each_element(c, one, [&](int64_t i, int64_t lead, int64_t row, int64_t column) {
      const auto [lr, decay] = settings.at(i);
      const double rate = sdk::factored_rate(step_of(c, lr), norms[one.norm_at], norms[one.norm_at + 1],
                                             static_cast<double>(one.whole_count), eps2, d);
      c.writes[0][i] = c.reads[1][i] * (1 - lr * decay) - rate * updates.at(i, lead, row, column);
    });
  }
}

}  // namespace

const Family adafactor_rules = {
    {"factor_means", factor_means}, {"factor_norms", factor_norms}, {"adafactor", adafactor}};

}  // namespace prun::reference
