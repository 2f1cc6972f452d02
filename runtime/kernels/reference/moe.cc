// route, dispatch, combine and expert_linear by their definitions.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

// Returns the indices of the k largest keys, largest first; of equal keys the lower index comes first.
std::vector<int64_t> largest(const std::vector<double>& keys, int64_t k) {
  std::vector<int64_t> order;
  std::vector<bool> taken(keys.size());
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = -1;
    for (int64_t i = 0; i < std::ssize(keys); ++i)
      if (!taken[i] && (best < 0 || keys[i] > keys[best])) best = i;
    taken[best] = true;
    order.push_back(best);
  }
  return order;
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

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

bool by_sigmoids(const Call& c) { return c.attrs.text("scores", "softmax") == "sigmoid"; }

// Returns the score of each expert of row n.
std::vector<double> scores(const Call& c, int64_t n) {
  const Array& logits = c.reads[0];
  std::vector<double> s = softmax(logits, n);
  for (int64_t e = 0; by_sigmoids(c) && e < logits.last(); ++e) s[e] = sigmoid(logits[n * logits.last() + e]);
  return s;
}

// Returns the experts of row n. Without a bias and if all groups are kept, the logits decide, because scores may be
// equal where logits are not.
std::vector<int64_t> choices(const Call& c, int64_t n, int64_t k) {
  const Array& logits = c.reads[0];
  const int64_t experts = logits.last(), groups = c.attrs.integer("groups", 1), size = experts / groups;
  const int64_t kept = c.attrs.integer("groups_kept", groups);
  const bool biased = c.attrs.integer("biased") != 0;
  const auto row = logits.v.begin() + n * experts;
  std::vector<double> keys(row, row + experts);
  if (biased || kept < groups) keys = scores(c, n);
  for (int64_t e = 0; biased && e < experts; ++e) keys[e] += c.reads[1][e];
  std::vector<double> of_groups;
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<double> best(keys.begin() + g * size, keys.begin() + (g + 1) * size);
    std::sort(best.begin(), best.end(), std::greater<>());
    of_groups.push_back(size > 1 ? best[0] + best[1] : best[0]);
  }
  std::vector<bool> is_kept(groups);
  for (int64_t g : largest(of_groups, kept)) is_kept[g] = true;
  for (int64_t e = 0; e < experts; ++e)
    if (!is_kept[e / size]) keys[e] = -INFINITY;
  return largest(keys, k);
}

// Whether token n counts. `runs`: the read with the run of each token's document.
bool counts_for_something(const Call& c, int64_t n, size_t runs) {
  return c.attrs.integer("runs") == 0 || c.reads[runs][2 * n + 1] - c.reads[runs][2 * n] > 1;
}

constexpr double kNoRoute = std::numeric_limits<int32_t>::min();

void route(Call& c) {
  const Array& logits = c.reads[0];
  Array &weights = c.writes[0], &slots = c.writes[1], &counts = c.writes[2];
  int64_t k = c.attrs.integer("k", 1), capacity = c.attrs.integer("capacity");
  if (capacity == 0) capacity = logits.rows();
  for (int64_t n = 0; n < logits.rows(); ++n) {
    const std::vector<double> s = scores(c, n);
    const std::vector<int64_t> chosen = choices(c, n, k);
    double sum = by_sigmoids(c) ? 1e-20 : 0;
    for (int64_t e : chosen) sum += s[e];
    if (c.attrs.integer("renormalise", 1) == 0) sum = 1;
    int64_t at = n * k;
    for (int64_t e : chosen) {
      weights[at] = s[e] / sum * c.attrs.number("factor", 1);
      if (!counts_for_something(c, n, c.reads.size() - 1)) {
        slots[at++] = kNoRoute;
        continue;
      }
      int64_t place = static_cast<int64_t>(counts[e]++);
      slots[at++] = static_cast<double>(place < capacity ? e * capacity + place : -1 - e);
    }
  }
  for (int64_t e = 0; e < logits.last(); ++e) c.writes[3][e] = std::min(counts[e], static_cast<double>(capacity));
}

// The gradient of the balancing loss aux·experts·Σ f·P and of the z-loss, for one token. f = counts / Σ counts is
// fixed, P = share·Σ over tokens of the scores divided by their sum; the z-loss is z·share·Σ lse².
void add_router_losses(Call& c, int64_t n, double choices, double share) {
  const Array &logits = c.reads[0], &counts = c.reads[4];
  const int64_t experts = logits.last();
  const std::vector<double> s = scores(c, n), p = softmax(logits, n);
  const double sum = std::accumulate(s.begin(), s.end(), 0.0);
  double along = 0;
  for (int64_t e = 0; e < experts; ++e) along += s[e] / sum * counts[e] / choices;
  double lse = 0;
  for (int64_t e = 0; e < experts; ++e) lse += std::exp(logits[n * experts + e] - logits[n * experts]);
  lse = std::log(lse) + logits[n * experts];
  for (int64_t e = 0; e < experts; ++e) {
    const double slope = by_sigmoids(c) ? 1 - s[e] : 1;
    c.writes[0][n * experts + e] += c.attrs.number("aux") * static_cast<double>(experts) * share * s[e] / sum * slope *
                                    (counts[e] / choices - along);
    c.writes[0][n * experts + e] += 2 * c.attrs.number("z") * share * lse * p[e];
  }
}

void route_grad(Call& c) {
  const Array &logits = c.reads[0], &weights = c.reads[1], &dweights = c.reads[2], &slots = c.reads[3];
  Array& dlogits = c.writes[0];
  int64_t k = c.attrs.integer("k", 1), experts = logits.last(), tokens = logits.rows();
  int64_t capacity = c.attrs.integer("capacity") == 0 ? tokens : c.attrs.integer("capacity");
  const double factor = c.attrs.number("factor", 1);
  const bool divided = c.attrs.integer("renormalise", 1) != 0;
  double choices = static_cast<double>(c.attrs.integer("tokens", tokens) * k);
  double share = c.attrs.number("scale", 1.0 / static_cast<double>(tokens));
  if (c.reads.size() > 4 && c.attrs.integer("runs") != 0) {
    double counted = 0;
    for (int64_t e = 0; e < experts; ++e) counted += c.reads[4][e];
    counted = std::max(counted, 1.0);
    share *= choices / counted;
    choices = counted;
  }
  for (int64_t n = 0; n < tokens; ++n) {
    if (slots[n * k] == kNoRoute) continue;
    const std::vector<double> s = scores(c, n);
    // The weights are factor·s / S with S the sum of the chosen scores, or 1.
    std::vector<double> ds(experts);
    double sum = by_sigmoids(c) ? 1e-20 : 0, along = 0;
    std::vector<int64_t> chosen;
    for (int64_t j = 0; j < k; ++j) {
      const int64_t slot = static_cast<int64_t>(slots[n * k + j]);
      chosen.push_back(slot >= 0 ? slot / capacity : -1 - slot);
      sum += s[chosen[j]], along += weights[n * k + j] * dweights[n * k + j];
    }
    for (int64_t j = 0; j < k; ++j)
      ds[chosen[j]] = divided ? (factor * dweights[n * k + j] - along) / sum : factor * dweights[n * k + j];
    double mean = 0;
    for (int64_t e = 0; e < experts; ++e) mean += s[e] * ds[e];
    for (int64_t e = 0; e < experts; ++e)
      dlogits[n * experts + e] = by_sigmoids(c) ? s[e] * (1 - s[e]) * ds[e] : s[e] * (ds[e] - mean);
    if (c.reads.size() > 4) add_router_losses(c, n, choices, share);
  }
}

void softmax_sums(Call& c) {
  const Array& logits = c.reads[0];
  for (int64_t n = 0; n < logits.rows(); ++n) {
    if (!counts_for_something(c, n, 1)) continue;
    const std::vector<double> p = softmax(logits, n);
    for (int64_t e = 0; e < logits.last(); ++e) c.writes[0][e] += p[e];
  }
}

void softmax_sums_grad(Call& c) {
  const Array &logits = c.reads[0], &ds = c.reads[1];
  const int64_t experts = logits.last();
  for (int64_t n = 0; n < logits.rows(); ++n) {
    if (!counts_for_something(c, n, 2)) continue;
    const std::vector<double> p = softmax(logits, n);
    double mean = 0;
    for (int64_t e = 0; e < experts; ++e) mean += p[e] * ds[e];
    for (int64_t e = 0; e < experts; ++e) c.writes[0][n * experts + e] = p[e] * (ds[e] - mean);
  }
}

// Calls f(token, choice, slot) for each choice with a slot among those of `slotted`; the choice is an index of [N,k].
// In a round, slots are numbered for all tokens of each expert, of which `slotted` has the round's positions.
template <class F>
void each_slot(const Call& c, const Array& slots, const Array& slotted, F f) {
  const int64_t size = slotted.shape[1], first = c.attrs.integer("round") * size;
  for (int64_t i = 0; i < slots.count(); ++i) {
    if (slots[i] < 0) continue;
    const int64_t slot = static_cast<int64_t>(slots[i]), expert = slot / slots.rows(), place = slot % slots.rows();
    if (!c.attrs.has("round"))
      f(i / slots.last(), i, slot);
    else if (place >= first && place < first + size)
      f(i / slots.last(), i, expert * size + place - first);
  }
}

void dispatch(Call& c) {
  const Array& x = c.reads[0];
  each_slot(c, c.reads[1], c.writes[0], [&](int64_t n, int64_t, int64_t slot) {
    for (int64_t i = 0; i < x.last(); ++i) c.writes[0][slot * x.last() + i] = x[n * x.last() + i];
  });
}

void dispatch_grad(Call& c) {
  const Array& dy = c.reads[1];
  if (c.reads.size() > 2) c.writes[0].v = c.reads[2].v;
  each_slot(c, c.reads[0], dy, [&](int64_t n, int64_t, int64_t slot) {
    for (int64_t i = 0; i < dy.last(); ++i) c.writes[0][n * dy.last() + i] += dy[slot * dy.last() + i];
  });
}

void combine(Call& c) {
  const Array& y = c.reads[0];
  if (c.reads.size() > 3) c.writes[0].v = c.reads[3].v;
  each_slot(c, c.reads[1], y, [&](int64_t n, int64_t choice, int64_t slot) {
    for (int64_t i = 0; i < y.last(); ++i) c.writes[0][n * y.last() + i] += c.reads[2][choice] * y[slot * y.last() + i];
  });
}

void combine_grad(Call& c) {
  const Array &y = c.reads[0], &dout = c.reads[3];
  if (c.reads.size() > 4) c.writes[1].v = c.reads[4].v;
  each_slot(c, c.reads[1], y, [&](int64_t n, int64_t choice, int64_t slot) {
    for (int64_t i = 0; i < y.last(); ++i) {
      c.writes[0][slot * y.last() + i] = c.reads[2][choice] * dout[n * y.last() + i];
      c.writes[1][choice] += dout[n * y.last() + i] * y[slot * y.last() + i];
    }
  });
}

// Returns whether row `row` of an expert has a token. `filled` [experts, sources] counts the rows with a token: each
// source fills the first of its equal share of the rows, in rounds of as many.
bool has_token(const Array& filled, int64_t expert, int64_t row, int64_t rows, int64_t round) {
  const int64_t of_source = rows / filled.last();
  return round * of_source + row % of_source < static_cast<int64_t>(filled[expert * filled.last() + row / of_source]);
}

// Computes the GEMM c[e] = op(a[e])·op(b[e]) of each expert. Rows of a as stored without a token count as zeros.
void gemms(Call& call, bool transpose_a, bool transpose_b) {
  const Array &a = call.reads[0], &b = call.reads[1], &filled = call.reads[2];
  Array& c = call.writes[0];
  int64_t m = c.shape[1], n = c.shape[2], k = transpose_a ? a.shape[1] : a.shape[2];
  for (int64_t e = 0; e < c.shape[0]; ++e)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t p = 0; p < k; ++p)
          if (has_token(filled, e, transpose_a ? p : i, a.shape[1], call.attrs.integer("round")))
            c[(e * m + i) * n + j] += a[e * m * k + (transpose_a ? p * m + i : i * k + p)] *
                                      b[e * k * n + (transpose_b ? j * k + p : p * n + j)];
}

void expert_linear(Call& c) { gemms(c, false, false); }
void expert_linear_dx(Call& c) { gemms(c, false, true); }
void expert_linear_dw(Call& c) { gemms(c, true, false); }
void expert_linear_dw_add(Call& c) {
  expert_linear_dw(c);
  add_sums(c);
}

// pack_rows, and its inverse: rows with a token of [E,P·C,d] in the order of sources, then experts, and [P,E,C,d].
template <bool pack>
void pack_rows(Call& c) {
  const Array &x = c.reads[0], &filled = c.reads[1];
  const Array& slotted = pack ? x : c.writes[0];
  const int64_t sources = filled.last(), experts = filled.rows(), rows = slotted.shape[1], width = x.last();
  int64_t packed = 0;
  for (int64_t p = 0; p < sources; ++p)
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t row = p * (rows / sources); row < (p + 1) * (rows / sources); ++row) {
        if (!has_token(filled, e, row, rows, c.attrs.integer("round"))) continue;
        const int64_t slot = e * rows + row, from = pack ? slot : packed, to = pack ? packed : slot;
        for (int64_t i = 0; i < width; ++i) c.writes[0][to * width + i] = x[from * width + i];
        packed++;
      }
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
                          {"pack_rows", pack_rows<true>},
                          {"unpack_rows", pack_rows<false>},
                          {"expert_linear", expert_linear},
                          {"expert_linear_dx", expert_linear_dx},
                          {"expert_linear_dw", expert_linear_dw},
                          {"expert_linear_dw_add", expert_linear_dw_add}};

}  // namespace prun::reference
