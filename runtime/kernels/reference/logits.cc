// Ops over rows of logits: kl, logsumexp, accuracy.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "device/ids.h"
#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

// The log-sum-exp of row r, each element divided by `temperature`.
double lse_of(const Array& x, int64_t r, double temperature = 1) {
  const int64_t n = x.last();
  double most = x[r * n] / temperature, sum = 0;
  for (int64_t i = 1; i < n; ++i) most = std::max(most, x[r * n + i] / temperature);
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[r * n + i] / temperature - most);
  return most + std::log(sum);
}

// Σ over rows of Σ p·(log p − log q), with p the teacher's probabilities and q the model's.
void kl(Call& c) {
  const Array &x = c.reads[0], &teacher = c.reads[1];
  const double t = c.attrs.number("temperature", 1);
  double sum = 0;
  for (int64_t r = 0; r < x.rows(); ++r) {
    const double own = lse_of(x, r, t), its = lse_of(teacher, r, t);
    for (int64_t e = r * x.last(); e < (r + 1) * x.last(); ++e) {
      const double log_p = teacher[e] / t - its;
      sum += std::exp(log_p) * (log_p - (x[e] / t - own));
    }
  }
  c.writes[0][0] = sum * c.attrs.number("scale", 1);
}

void kl_grad(Call& c) {
  const Array &x = c.reads[0], &teacher = c.reads[1];
  const double t = c.attrs.number("temperature", 1), factor = c.attrs.number("scale", 1) / t;
  for (int64_t r = 0; r < x.rows(); ++r) {
    const double own = lse_of(x, r, t), its = lse_of(teacher, r, t);
    for (int64_t e = r * x.last(); e < (r + 1) * x.last(); ++e)
      c.writes[0][e] = factor * (std::exp(x[e] / t - own) - std::exp(teacher[e] / t - its));
  }
}

void logsumexp(Call& c) {
  for (int64_t r = 0; r < c.reads[0].rows(); ++r) c.writes[0][r] = lse_of(c.reads[0], r);
}

void logsumexp_grad(Call& c) {
  const Array &x = c.reads[0], &lse = c.reads[1], &dlse = c.reads[2];
  for (int64_t e = 0; e < x.count(); ++e) {
    const int64_t r = e / x.last();
    c.writes[0][e] = dlse[r] * std::exp(x[e] - lse[r]);
  }
}

// The first of equal logits counts as the largest, as in torch.argmax on a CPU.
void accuracy(Call& c) {
  const Array &x = c.reads[0], &targets = c.reads[1];
  double right = 0, counted = 0;
  for (int64_t r = 0; r < x.rows(); ++r) {
    if (targets[r] == kIgnoredTarget) continue;
    int64_t best = 0;
    for (int64_t i = 1; i < x.last(); ++i)
      if (x[r * x.last() + i] > x[r * x.last() + best]) best = i;
    counted += 1;
    right += best == static_cast<int64_t>(targets[r]) ? 1 : 0;
  }
  c.writes[0][0] = right * c.attrs.number("scale", 1);
  c.writes[1][0] = counted * c.attrs.number("scale", 1);
}

}  // namespace

const Family logit_rules = {{"kl", kl},
                            {"kl_grad", kl_grad},
                            {"logsumexp", logsumexp},
                            {"logsumexp_grad", logsumexp_grad},
                            {"accuracy", accuracy}};

}  // namespace prun::reference
