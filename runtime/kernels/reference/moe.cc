// route, dispatch, combine and expert_linear by their definitions.
#include <cmath>

#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

// Returns the experts of the k largest logits of row n, largest first; of equal logits the lower expert comes first.
std::vector<int64_t> choices(const Array& logits, int64_t n, int64_t k) {
  std::vector<int64_t> chosen;
  std::vector<bool> taken(logits.last());
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < logits.last(); ++e) {
      if (taken[e]) continue;
      if (best < 0 || logits[n * logits.last() + e] > logits[n * logits.last() + best]) best = e;
    }
    taken[best] = true;
    chosen.push_back(best);
  }
  return chosen;
}

// Returns the probability of each expert of row n.
std::vector<double> softmax(const Array& logits, int64_t n) {
  const double* row = logits.v.data() + n * logits.last();
  double top = -INFINITY, sum = 0;
  for (int64_t e = 0; e < logits.last(); ++e) top = std::max(top, row[e]);
  for (int64_t e = 0; e < logits.last(); ++e) sum += std::exp(row[e] - top);
  std::vector<double> p;
  for (int64_t e = 0; e < logits.last(); ++e) p.push_back(std::exp(row[e] - top) / sum);
  return p;
}

void route(Call& c) {
  const Array& logits = c.reads[0];
  Array &weights = c.writes[0], &slots = c.writes[1], &counts = c.writes[2];
  int64_t k = c.attrs.integer("k", 1), capacity = c.attrs.integer("capacity");
  if (capacity == 0) capacity = logits.rows();
  for (int64_t n = 0; n < logits.rows(); ++n) {
    std::vector<double> p = softmax(logits, n);
    double sum = 0;
    for (int64_t e : choices(logits, n, k)) sum += p[e];
    int64_t at = n * k;
    for (int64_t e : choices(logits, n, k)) {
      weights[at] = p[e] / sum;
      int64_t place = static_cast<int64_t>(counts[e]++);
      slots[at++] = static_cast<double>(place < capacity ? e * capacity + place : -1);
    }
  }
}

void route_grad(Call& c) {
  const Array &logits = c.reads[0], &weights = c.reads[1], &dweights = c.reads[2];
  Array& dlogits = c.writes[0];
  int64_t k = c.attrs.integer("k", 1), experts = logits.last(), tokens = logits.rows();
  double covered = static_cast<double>(c.attrs.integer("tokens", tokens) * k);
  double scale = c.attrs.number("scale", 1.0 / static_cast<double>(tokens));
  for (int64_t n = 0; n < tokens; ++n) {
    double along = 0;
    for (int64_t j = 0; j < k; ++j) along += weights[n * k + j] * dweights[n * k + j];
    int64_t at = n * k;
    for (int64_t e : choices(logits, n, k)) {
      dlogits[n * experts + e] += weights[at] * (dweights[at] - along);
      ++at;
    }
    if (c.reads.size() < 4) continue;
    // The loss is aux·experts·Σ f·P, with f = counts / covered fixed and P = scale·Σ over tokens of p.
    std::vector<double> p = softmax(logits, n);
    auto dp = [&](int64_t e) {
      return c.attrs.number("aux") * static_cast<double>(experts) * c.reads[3][e] / covered * scale;
    };
    double mean = 0;
    for (int64_t e = 0; e < experts; ++e) mean += p[e] * dp(e);
    for (int64_t e = 0; e < experts; ++e) dlogits[n * experts + e] += p[e] * (dp(e) - mean);
  }
}

void softmax_sums(Call& c) {
  const Array& logits = c.reads[0];
  for (int64_t n = 0; n < logits.rows(); ++n) {
    const std::vector<double> p = softmax(logits, n);
    for (int64_t e = 0; e < logits.last(); ++e) c.writes[0][e] += p[e];
  }
}

void softmax_sums_grad(Call& c) {
  const Array &logits = c.reads[0], &ds = c.reads[1];
  const int64_t experts = logits.last();
  for (int64_t n = 0; n < logits.rows(); ++n) {
    const std::vector<double> p = softmax(logits, n);
    double mean = 0;
    for (int64_t e = 0; e < experts; ++e) mean += p[e] * ds[e];
    for (int64_t e = 0; e < experts; ++e) c.writes[0][n * experts + e] = p[e] * (ds[e] - mean);
  }
}

// Calls f(token, choice, slot) for each choice with a slot; the choice is an index of [N,k].
template <class F>
void each_slot(const Array& slots, F f) {
  for (int64_t i = 0; i < slots.count(); ++i)
    if (slots[i] >= 0) f(i / slots.last(), i, static_cast<int64_t>(slots[i]));
}

void dispatch(Call& c) {
  const Array& x = c.reads[0];
  each_slot(c.reads[1], [&](int64_t n, int64_t, int64_t slot) {
    for (int64_t i = 0; i < x.last(); ++i) c.writes[0][slot * x.last() + i] = x[n * x.last() + i];
  });
}

void dispatch_grad(Call& c) {
  const Array& dy = c.reads[1];
  each_slot(c.reads[0], [&](int64_t n, int64_t, int64_t slot) {
    for (int64_t i = 0; i < dy.last(); ++i) c.writes[0][n * dy.last() + i] += dy[slot * dy.last() + i];
  });
}

void combine(Call& c) {
  const Array& y = c.reads[0];
  each_slot(c.reads[1], [&](int64_t n, int64_t choice, int64_t slot) {
    for (int64_t i = 0; i < y.last(); ++i) c.writes[0][n * y.last() + i] += c.reads[2][choice] * y[slot * y.last() + i];
  });
}

void combine_grad(Call& c) {
  const Array &y = c.reads[0], &dout = c.reads[3];
  each_slot(c.reads[1], [&](int64_t n, int64_t choice, int64_t slot) {
    for (int64_t i = 0; i < y.last(); ++i) {
      c.writes[0][slot * y.last() + i] = c.reads[2][choice] * dout[n * y.last() + i];
      c.writes[1][choice] += dout[n * y.last() + i] * y[slot * y.last() + i];
    }
  });
}

// Computes the GEMM c[e] = op(a[e])·op(b[e]) of each expert.
void gemms(const Array& a, bool transpose_a, const Array& b, bool transpose_b, Array& c) {
  int64_t m = c.shape[1], n = c.shape[2], k = transpose_a ? a.shape[1] : a.shape[2];
  for (int64_t e = 0; e < c.shape[0]; ++e)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t p = 0; p < k; ++p)
          c[(e * m + i) * n + j] += a[e * m * k + (transpose_a ? p * m + i : i * k + p)] *
                                    b[e * k * n + (transpose_b ? j * k + p : p * n + j)];
}

void expert_linear(Call& c) { gemms(c.reads[0], false, c.reads[1], false, c.writes[0]); }
void expert_linear_dx(Call& c) { gemms(c.reads[0], false, c.reads[1], true, c.writes[0]); }
void expert_linear_dw(Call& c) { gemms(c.reads[0], true, c.reads[1], false, c.writes[0]); }
void expert_linear_dw_add(Call& c) {
  expert_linear_dw(c);
  add_sums(c);
}

}  // namespace

const Family moe_rules = {{"route", route},
                          {"route_grad", route_grad},
                          {"softmax_sums", softmax_sums},
                          {"softmax_sums_grad", softmax_sums_grad},
                          {"dispatch", dispatch},
                          {"dispatch_grad", dispatch_grad},
                          {"combine", combine},
                          {"combine_grad", combine_grad},
                          {"expert_linear", expert_linear},
                          {"expert_linear_dx", expert_linear_dx},
                          {"expert_linear_dw", expert_linear_dw},
                          {"expert_linear_dw_add", expert_linear_dw_add}};

}  // namespace prun::reference
