// The op attend by its definition, one row of scores at a time.
#include <algorithm>
#include <cmath>
#include <vector>

#include "device/share.h"
#include "kernels/reference/rules.h"
#include "prun/sdk/key_rules.h"

namespace prun::reference {
namespace {

struct AttendLayout {
  int64_t batch, length, keys, heads, kv_heads, of_heads, first_head, size, value;
  double scale, cap;  // cap 0: none
  sdk::KeyRules rules;
  const Array *spans = nullptr, *mask = nullptr;

  // `rest`: index of the first read after those that forward and backward have without options.
  AttendLayout(const Call& c, size_t rest)
      : batch(c.reads[0].shape[0]),
        length(c.reads[0].shape[1]),
        keys(c.reads[1].shape[1]),
        heads(c.attrs.integer("heads", 1)),
        kv_heads(c.attrs.integer("kv_heads", heads)),
        of_heads(c.attrs.integer("of_heads", heads)),
        first_head(share_along(c.memory, c.attrs.text("kv_axis")).index * heads),
        size(c.reads[0].last() / heads),
        value(c.reads[2].last() / kv_heads),
        scale(c.attrs.number("scale", 1 / std::sqrt(static_cast<double>(size)))),
        cap(c.attrs.number("softcap", 0)),
        rules{keys, c.attrs.integer("causal") != 0, c.attrs.integer("window")} {
    if (c.attrs.integer("spans") != 0) spans = &c.reads[rest++];
    if (c.attrs.integer("masked") != 0) mask = &c.reads[rest];
    if (c.attrs.text("kv_axis").empty()) of_heads = heads;
  }
  int64_t kv_head(int64_t h) const { return sdk::kv_head_of(first_head + h, of_heads, kv_heads); }
  int64_t q(int64_t b, int64_t t, int64_t h) const { return ((b * length + t) * heads + h) * size; }
  int64_t k(int64_t b, int64_t s, int64_t h) const { return ((b * keys + s) * kv_heads + kv_head(h)) * size; }
  int64_t v(int64_t b, int64_t s, int64_t h) const { return ((b * keys + s) * kv_heads + kv_head(h)) * value; }
  int64_t out(int64_t b, int64_t t, int64_t h) const { return ((b * length + t) * heads + h) * value; }
  int64_t lse(int64_t b, int64_t t, int64_t h) const { return (b * heads + h) * length + t; }

  std::vector<int64_t> seen(int64_t b, int64_t t) const {
    int32_t span[2] = {};
    for (int i = 0; spans != nullptr && i < 2; ++i) span[i] = static_cast<int32_t>((*spans)[(b * length + t) * 2 + i]);
    const sdk::KeyRange range = rules.of(t, spans == nullptr ? nullptr : span);
    std::vector<int64_t> list;
    for (int64_t s = range.first; s < range.end; ++s) {
      if (mask != nullptr) {
        const int64_t rows = mask->rows() / batch;  // 1, or one for each query
        if ((*mask)[(b * rows + (rows == 1 ? 0 : t)) * keys + s] == 0) continue;
      }
      list.push_back(s);
    }
    return list;
  }
};

double score(const Call& c, const AttendLayout& at, int64_t b, int64_t t, int64_t s, int64_t h) {
  const double plain = dot(c.reads[0], at.q(b, t, h), c.reads[1], at.k(b, s, h), at.size) * at.scale;
  return at.cap > 0 ? at.cap * std::tanh(plain / at.cap) : plain;
}

// The log-sum-exp of a query without keys is stored as 0.
void attend(Call& c) {
  const AttendLayout at(c, 3);
  Array &out = c.writes[0], &lse = c.writes[1];
  each_query(at, [&](int64_t b, int64_t t, int64_t h) {
    const std::vector<int64_t> seen = at.seen(b, t);
    if (seen.empty()) return;
    std::vector<double> scores;
    scores.reserve(seen.size());
    for (const int64_t s : seen) scores.push_back(score(c, at, b, t, s, h));
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double one : scores) sum += std::exp(one - top);
    const double all = top + std::log(sum);
    lse[at.lse(b, t, h)] = all;
    for (size_t i = 0; i < seen.size(); ++i) {
      const double p = std::exp(scores[i] - all);
      for (int64_t e = 0; e < at.value; ++e) out[at.out(b, t, h) + e] += p * c.reads[2][at.v(b, seen[i], h) + e];
    }
  });
}

// With tanh, a score's derivative has the factor 1 − (score / cap)².
void attend_grad(Call& c) {
  const AttendLayout at(c, 6);
  const Array &q = c.reads[0], &k = c.reads[1], &v = c.reads[2], &out = c.reads[3], &dout = c.reads[4],
              &lse = c.reads[5];
  each_query(at, [&](int64_t b, int64_t t, int64_t h) {
    const int64_t row = at.out(b, t, h);
    const double along = dot(dout, row, out, row, at.value);
    for (const int64_t s : at.seen(b, t)) {
      const int64_t q_at = at.q(b, t, h), k_at = at.k(b, s, h), v_at = at.v(b, s, h);
      const double capped = score(c, at, b, t, s, h), p = std::exp(capped - lse[at.lse(b, t, h)]);
      double dscore = p * (dot(dout, row, v, v_at, at.value) - along) * at.scale;
      if (at.cap > 0) dscore *= 1 - capped / at.cap * (capped / at.cap);
      for (int64_t e = 0; e < at.size; ++e) {
        c.writes[0][q_at + e] += dscore * k[k_at + e];
        c.writes[1][k_at + e] += dscore * q[q_at + e];
      }
      for (int64_t e = 0; e < at.value; ++e) c.writes[2][v_at + e] += p * dout[row + e];
    }
  });
}

}  // namespace

const Family attend_rules = {{"attend", attend}, {"attend_grad", attend_grad}};

}  // namespace prun::reference
