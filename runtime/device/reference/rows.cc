// Ops over rows: layernorm, embedding, cross-entropy.
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "device/reference/rules.h"

namespace prun::reference {
namespace {

void layernorm(Call& c) {
  const Array &x = c.reads[0], &gamma = c.reads[1], &beta = c.reads[2];
  int64_t n = x.last();
  for (int64_t r = 0; r < x.rows(); ++r) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < n; ++i) mean += x[r * n + i] / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) variance += (x[r * n + i] - mean) * (x[r * n + i] - mean) / static_cast<double>(n);
    double rstd = 1 / std::sqrt(variance + c.attrs.number("eps", 1e-5));
    for (int64_t i = 0; i < n; ++i) c.writes[0][r * n + i] = (x[r * n + i] - mean) * rstd * gamma[i] + beta[i];
    c.writes[1][r] = mean;
    c.writes[2][r] = rstd;
  }
}

// With z = (x − mean)·rstd and g = dy·gamma: dx = rstd·(g − mean(g) − z·mean(g·z)).
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

int64_t index_below(double value, int64_t size) {
  int64_t index = static_cast<int64_t>(value);
  PRUN_CHECK(index >= 0 && index < size, fmt::format("index {} of {}", index, size));
  return index;
}

void embedding(Call& c) {
  const Array &tokens = c.reads[0], &table = c.reads[1];
  int64_t d = table.last(), length = tokens.last();
  for (int64_t t = 0; t < tokens.count(); ++t) {
    int64_t row = index_below(tokens[t], table.shape[0]);
    for (int64_t i = 0; i < d; ++i) {
      c.writes[0][t * d + i] = table[row * d + i];
      if (c.reads.size() > 2) c.writes[0][t * d + i] += c.reads[2][t % length * d + i];
    }
  }
}

void embedding_grad(Call& c) {
  const Array &tokens = c.reads[0], &dy = c.reads[1];
  Array& dtable = c.writes[0];
  int64_t d = dtable.last(), length = tokens.last();
  for (int64_t t = 0; t < tokens.count(); ++t) {
    int64_t row = index_below(tokens[t], dtable.shape[0]);
    for (int64_t i = 0; i < d; ++i) {
      dtable[row * d + i] += dy[t * d + i];
      if (c.writes.size() > 1) c.writes[1][t % length * d + i] += dy[t * d + i];
    }
  }
}

void cross_entropy(Call& c) {
  const Array &logits = c.reads[0], &targets = c.reads[1];
  int64_t n = logits.last();
  double loss = 0;
  for (int64_t r = 0; r < logits.rows(); ++r) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; ++i) top = std::max(top, logits[r * n + i]);
    for (int64_t i = 0; i < n; ++i) sum += std::exp(logits[r * n + i] - top);
    c.writes[1][r] = top + std::log(sum);
    loss += c.writes[1][r] - logits[r * n + index_below(targets[r], n)];
  }
  c.writes[0][0] = loss * c.attrs.number("scale", 1);
}

void cross_entropy_grad(Call& c) {
  const Array &logits = c.reads[0], &targets = c.reads[1], &lse = c.reads[2];
  int64_t n = logits.last();
  double scale = c.attrs.number("scale", 1);
  for (int64_t r = 0; r < logits.rows(); ++r) {
    int64_t target = index_below(targets[r], n);
    for (int64_t i = 0; i < n; ++i)
      c.writes[0][r * n + i] = scale * (std::exp(logits[r * n + i] - lse[r]) - (i == target ? 1 : 0));
  }
}

constexpr Rule kRules[] = {{"layernorm", layernorm},         {"layernorm_grad", layernorm_grad},
                           {"embedding", embedding},         {"embedding_grad", embedding_grad},
                           {"cross_entropy", cross_entropy}, {"cross_entropy_grad", cross_entropy_grad}};

}  // namespace

std::span<const Rule> row_rules() { return kRules; }

}  // namespace prun::reference
