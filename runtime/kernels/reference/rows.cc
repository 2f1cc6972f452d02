// Ops over rows: layernorm, rmsnorm, bias, rotary, embedding, positions, cross-entropy.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "device/ids.h"
#include "device/share.h"
#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

void normalize(const Call& c, const Array& x, const Array& gamma, const Array& beta, Array& y, Array& means,
               Array& rstds) {
  int64_t n = x.last();
  for (int64_t r = 0; r < x.rows(); ++r) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < n; ++i) mean += x[r * n + i] / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) variance += (x[r * n + i] - mean) * (x[r * n + i] - mean) / static_cast<double>(n);
    double rstd = 1 / std::sqrt(variance + c.attrs.number("eps", 1e-5));
    for (int64_t i = 0; i < n; ++i) y[r * n + i] = (x[r * n + i] - mean) * rstd * gamma[i] + beta[i];
    means[r] = mean;
    rstds[r] = rstd;
  }
}

// Computes reads[0] + reads[1] as it is stored, because the norm reads the stored sum.
const Array& rounded_sum(const Call& c, Array& sum) {
  for (int64_t i = 0; i < sum.count(); ++i) sum[i] = rounded(sum.dtype, c.reads[0][i] + c.reads[1][i]);
  return sum;
}

void layernorm(Call& c) { normalize(c, c.reads[0], c.reads[1], c.reads[2], c.writes[0], c.writes[1], c.writes[2]); }
void add_layernorm(Call& c) {
  normalize(c, rounded_sum(c, c.writes[1]), c.reads[2], c.reads[3], c.writes[0], c.writes[2], c.writes[3]);
}

// Computes dx = rstd·(g − mean(g) − z·mean(g·z)) with z = (x − mean)·rstd and g = dy·gamma.
void layernorm_grad(Call& c) {
  const Array &x = c.reads[0], &dy = c.reads[1], &gamma = c.reads[2], &mean = c.reads[3], &rstd = c.reads[4];
  int64_t n = x.last();
  for (int64_t r = 0; r < x.rows(); ++r) {
    auto z = [&](int64_t i) { return (x[r * n + i] - mean[r]) * rstd[r]; };
    auto g = [&](int64_t i) { return dy[r * n + i] * gamma[i]; };
    double g_mean = 0, gz_mean = 0;
    for (int64_t i = 0; i < n; ++i) g_mean += g(i) / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) gz_mean += g(i) * z(i) / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) {
      c.writes[0][r * n + i] = rstd[r] * (g(i) - g_mean - z(i) * gz_mean);
      c.writes[1][i] += dy[r * n + i] * z(i);
      c.writes[2][i] += dy[r * n + i];
    }
  }
}

void scale_rows(const Call& c, const Array& x, const Array& gamma, Array& y, Array& rrms) {
  int64_t n = x.last();
  for (int64_t r = 0; r < x.rows(); ++r) {
    double square = 0;
    for (int64_t i = 0; i < n; ++i) square += x[r * n + i] * x[r * n + i] / static_cast<double>(n);
    rrms[r] = 1 / std::sqrt(square + c.attrs.number("eps", 1e-5));
    for (int64_t i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] * rrms[r] * gamma[i];
  }
}

void rmsnorm(Call& c) { scale_rows(c, c.reads[0], c.reads[1], c.writes[0], c.writes[1]); }
void add_rmsnorm(Call& c) { scale_rows(c, rounded_sum(c, c.writes[1]), c.reads[2], c.writes[0], c.writes[2]); }

// Computes dx = rrms·(g − z·mean(g·z)) with z = x·rrms and g = dy·gamma.
void rmsnorm_grad(Call& c) {
  const Array &x = c.reads[0], &dy = c.reads[1], &gamma = c.reads[2], &rrms = c.reads[3];
  int64_t n = x.last();
  for (int64_t r = 0; r < x.rows(); ++r) {
    double gz_mean = 0;
    for (int64_t i = 0, e = r * n; i < n; ++i, ++e)
      gz_mean += dy[e] * gamma[i] * x[e] * rrms[r] / static_cast<double>(n);
    for (int64_t i = 0, e = r * n; i < n; ++i, ++e) {
      double z = x[e] * rrms[r];
      c.writes[0][e] = rrms[r] * (dy[e] * gamma[i] - z * gz_mean);
      c.writes[1][i] += dy[e] * z;
    }
  }
}

// Computes dx plus another gradient.
template <void norm_grad(Call&)>
void norm_grad_add(Call& c) {
  norm_grad(c);
  Array& dx = c.writes[0];
  for (int64_t i = 0; i < dx.count(); ++i) dx[i] = rounded(dx.dtype, dx[i]) + c.reads.back()[i];
}

void bias(Call& c) {
  const Array &x = c.reads[0], &b = c.reads[1];
  for (int64_t i = 0; i < x.count(); ++i) c.writes[0][i] = x[i] + b[i % b.count()];
}

void bias_grad(Call& c) {
  for (int64_t i = 0; i < c.reads[0].count(); ++i) c.writes[0][i % c.writes[0].count()] += c.reads[0][i];
}

void bias_grad_add(Call& c) {
  bias_grad(c);
  add_sums(c);
}

int64_t index_below(double value, int64_t size, const char* text) {
  const int64_t index = static_cast<int64_t>(value);
  require_id(index, size, text);
  return index;
}

// Returns the index of a row in this rank's `rows` rows of a table, or -1 if the row is another rank's.
int64_t table_row(const Call& c, double token, int64_t rows) {
  const std::string axis = c.attrs.text("axis");
  const Share share = share_along(c.memory, axis);
  const int64_t all = c.attrs.integer("valid", share.of * rows);
  const int64_t row = index_below(token, all, kTokenOutside) - share.index * rows;
  return row >= 0 && row < rows ? row : -1;
}

void embedding(Call& c) {
  const Array &tokens = c.reads[0], &table = c.reads[1];
  int64_t d = table.last(), length = tokens.last();
  for (int64_t t = 0; t < tokens.count(); ++t) {
    int64_t row = table_row(c, tokens[t], table.shape[0]);
    for (int64_t i = 0; i < d; ++i) {
      c.writes[0][t * d + i] = row < 0 ? 0 : table[row * d + i];
      if (c.reads.size() > 2) c.writes[0][t * d + i] += c.reads[2][t % length * d + i];
    }
  }
}

void embedding_grad(Call& c) {
  const Array &tokens = c.reads[0], &dy = c.reads[1];
  Array& dtable = c.writes[0];
  int64_t d = dtable.last(), length = tokens.last();
  for (int64_t t = 0; t < tokens.count(); ++t) {
    int64_t row = table_row(c, tokens[t], dtable.shape[0]);
    for (int64_t i = 0; i < d; ++i) {
      if (row >= 0) dtable[row * d + i] += dy[t * d + i];
      if (c.writes.size() > 1) c.writes[1][t % length * d + i] += dy[t * d + i];
    }
  }
}

void positions(Call& c) {
  const Array &x = c.reads[0], &table = c.reads[1];
  int64_t length = x.shape[1], d = x.last();
  TokenPositions at(c.memory, c.attrs, length);
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t i = 0; i < d; ++i) c.writes[0][r * d + i] = x[r * d + i] + table[at.of(r % length) * d + i];
}

void positions_grad(Call& c) {
  const Array& dy = c.reads[0];
  int64_t length = dy.shape[1], d = dy.last();
  TokenPositions at(c.memory, c.attrs, length);
  for (int64_t r = 0; r < dy.rows(); ++r)
    for (int64_t i = 0; i < d; ++i) c.writes[0][at.of(r % length) * d + i] += dy[r * d + i];
}

void rotary(Call& c) {
  const Array& x = c.reads[0];
  const int64_t length = x.shape[1];
  TokenPositions at(c.memory, c.attrs, length);
  c.writes[0].v = x.v;
  for (int64_t r = 0; r < x.rows(); ++r) rotate_row(c, r, static_cast<double>(at.of(r % length)));
}

// This rank's columns of the logits, by attributes vocab and axis.
struct Columns {
  int64_t first, width, vocab;
  Columns(const Call& c, const Array& logits) : width(logits.last()) {
    Share share = share_along(c.memory, c.attrs.text("axis"));
    first = share.index * width;
    vocab = c.attrs.integer("vocab", share.of * width);
  }
  // Returns this rank's columns that are no padding.
  int64_t valid() const { return std::clamp<int64_t>(vocab - first, 0, width); }
  bool padding(int64_t i) const { return first + i >= vocab; }
  bool is(int64_t i, double target) const {
    return target != kIgnoredTarget && first + i == index_below(target, vocab, kTargetOutside);
  }
};

// Weight of the mean logit relative to the target's, by label smoothing (Szegedy et al. 2016, torch's definition).
double smoothing_of(const Call& c) { return c.attrs.number("label_smoothing", 0); }

// Returns this rank's part of the smoothed logit of a row's target: (1 − s)·logit of the target + s·mean of all logits.
double smoothed(const Call& c, const Columns& columns, const double* row, double target) {
  const double smoothing = smoothing_of(c);
  double logit = 0, sum = 0;
  for (int64_t i = 0; i < columns.valid(); ++i) {
    if (columns.is(i, target)) logit = row[i];
    if (smoothing > 0) sum += row[i];
  }
  return (1 - smoothing) * logit + smoothing * sum / static_cast<double>(columns.vocab);
}

// Returns the factor of a row in the loss. `shares`: index of the optional input.
double factor_of(const Call& c, size_t shares, double target, int64_t row) {
  if (target == kIgnoredTarget) return 0;
  return c.attrs.number("scale", 1) * (c.reads.size() > shares ? c.reads[shares][row] : 1);
}

void cross_entropy_max(Call& c) {
  const Array& logits = c.reads[0];
  Columns columns(c, logits);
  for (int64_t r = 0; r < logits.rows(); ++r) {
    c.writes[0][r] = -INFINITY;
    for (int64_t i = 0; i < columns.width; ++i)
      if (!columns.padding(i)) c.writes[0][r] = std::max(c.writes[0][r], logits[r * columns.width + i]);
  }
}

void cross_entropy_sums(Call& c) {
  const Array &logits = c.reads[0], &targets = c.reads[1], &top = c.reads[2];
  Columns columns(c, logits);
  int64_t rows = logits.rows();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < columns.width; ++i) {
      double logit = logits[r * columns.width + i];
      if (!columns.padding(i)) c.writes[0][r] += std::exp(logit - top[r]);
    }
  for (int64_t r = 0; r < rows; ++r)
    c.writes[0][rows + r] = smoothed(c, columns, &logits[r * columns.width], targets[r]);
}

void cross_entropy_finish(Call& c) {
  const Array &sums = c.reads[0], &top = c.reads[1], &targets = c.reads[3];
  int64_t rows = top.count();
  for (int64_t r = 0; r < rows; ++r) {
    c.writes[1][r] = top[r] + std::log(sums[r]);
    const double factor = factor_of(c, 4, targets[r], r);
    if (factor != 0) c.writes[0][0] += factor * (c.writes[1][r] - sums[rows + r]);
  }
}

void cross_entropy(Call& c) {
  const Array &logits = c.reads[0], &targets = c.reads[1];
  const Columns columns(c, logits);
  const int64_t n = logits.last(), vocab = columns.vocab;
  for (int64_t r = 0; r < logits.rows(); ++r) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocab; ++i) top = std::max(top, logits[r * n + i]);
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[r * n + i] - top);
    c.writes[1][r] = top + std::log(sum);
    if (targets[r] == kIgnoredTarget) continue;
    index_below(targets[r], vocab, kTargetOutside);
    const double factor = factor_of(c, 2, targets[r], r);
    if (factor != 0) c.writes[0][0] += factor * (c.writes[1][r] - smoothed(c, columns, &logits[r * n], targets[r]));
  }
}

// `shares`: index of the optional input.
void loss_gradient(const Call& c, const Array& lse, size_t shares, Array& dlogits) {
  const Array &logits = c.reads[0], &targets = c.reads[1];
  Columns columns(c, logits);
  const double vocab = static_cast<double>(columns.vocab), others = smoothing_of(c) / vocab,
               own = 1 - (vocab - 1) * others;
  for (int64_t r = 0; r < logits.rows(); ++r) {
    const double factor = factor_of(c, shares, targets[r], r);
    for (int64_t i = 0, e = r * columns.width; i < columns.width; ++i, ++e) {
      if (factor == 0)
        dlogits[e] = 0;
      else if (!columns.padding(i))
        dlogits[e] = factor * (std::exp(logits[e] - lse[r]) - (columns.is(i, targets[r]) ? own : others));
    }
  }
}

void cross_entropy_grad(Call& c) { loss_gradient(c, c.reads[2], 3, c.writes[0]); }

void cross_entropy_and_grad(Call& c) {
  cross_entropy(c);
  loss_gradient(c, c.writes[1], 2, c.writes[2]);
}

}  // namespace

const Family row_rules = {{"layernorm", layernorm},
                          {"layernorm_grad", layernorm_grad},
                          {"add_layernorm", add_layernorm},
                          {"layernorm_grad_add", norm_grad_add<layernorm_grad>},
                          {"rmsnorm", rmsnorm},
                          {"rmsnorm_grad", rmsnorm_grad},
                          {"add_rmsnorm", add_rmsnorm},
                          {"rmsnorm_grad_add", norm_grad_add<rmsnorm_grad>},
                          {"bias", bias},
                          {"bias_grad", bias_grad},
                          {"bias_grad_add", bias_grad_add},
                          {"embedding", embedding},
                          {"embedding_grad", embedding_grad},
                          {"positions", positions},
                          {"positions_grad", positions_grad},
                          {"rotary", rotary},
                          {"cross_entropy", cross_entropy},
                          {"cross_entropy_max", cross_entropy_max},
                          {"cross_entropy_sums", cross_entropy_sums},
                          {"cross_entropy_finish", cross_entropy_finish},
                          {"cross_entropy_grad", cross_entropy_grad},
                          {"cross_entropy_and_grad", cross_entropy_and_grad}};

}  // namespace prun::reference
