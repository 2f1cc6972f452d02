// Attention by its definition, one row of scores at a time.
#include <cmath>

#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

// Offsets in qkv [B,T,(heads + 2·kv_heads)·size], whose rows have the heads of q, then k, then v, and in out [B,T,d].
struct Layout {
  int64_t batch, length, heads, kv_heads, size;
  bool causal;
  explicit Layout(const Call& c)
      : batch(c.reads[0].shape[0]),
        length(c.reads[0].shape[1]),
        heads(c.attrs.integer("heads", 1)),
        kv_heads(c.attrs.integer("kv_heads", heads)),
        size(c.reads[0].shape[2] / (heads + 2 * kv_heads)),
        causal(c.attrs.integer("causal") != 0) {}
  double scale() const { return 1 / std::sqrt(static_cast<double>(size)); }
  int64_t at(int64_t b, int64_t t, int64_t head, int64_t e) const {
    return ((b * length + t) * (heads + 2 * kv_heads) + head) * size + e;
  }
  int64_t q(int64_t b, int64_t t, int64_t h, int64_t e) const { return at(b, t, h, e); }
  int64_t k(int64_t b, int64_t t, int64_t h, int64_t e) const { return at(b, t, heads + h * kv_heads / heads, e); }
  int64_t v(int64_t b, int64_t t, int64_t h, int64_t e) const {
    return at(b, t, heads + kv_heads + h * kv_heads / heads, e);
  }
  int64_t out(int64_t b, int64_t t, int64_t h, int64_t e) const { return ((b * length + t) * heads + h) * size + e; }
  int64_t lse(int64_t b, int64_t t, int64_t h) const { return (b * heads + h) * length + t; }
  int64_t keys(int64_t t) const { return causal ? t + 1 : length; }
  double score(const Array& x, int64_t b, int64_t t, int64_t s, int64_t h) const {
    double sum = 0;
    for (int64_t e = 0; e < size; ++e) sum += x[q(b, t, h, e)] * x[k(b, s, h, e)];
    return sum * scale();
  }
};

void attention(Call& c) {
  Layout at(c);
  const Array& x = c.reads[0];
  each_query(at, [&](int64_t b, int64_t t, int64_t h) {
    double top = -INFINITY, sum = 0;
    for (int64_t s = 0; s < at.keys(t); ++s) top = std::max(top, at.score(x, b, t, s, h));
    for (int64_t s = 0; s < at.keys(t); ++s) sum += std::exp(at.score(x, b, t, s, h) - top);
    double lse = top + std::log(sum);
    c.writes[1][at.lse(b, t, h)] = lse;
    for (int64_t s = 0; s < at.keys(t); ++s) {
      double p = std::exp(at.score(x, b, t, s, h) - lse);
      for (int64_t e = 0; e < at.size; ++e) c.writes[0][at.out(b, t, h, e)] += p * x[at.v(b, s, h, e)];
    }
  });
}

// Computes dscore = p·(dp − Σ dout·out), where p are the probabilities and dp = dout·vᵀ.
void attention_grad(Call& c) {
  Layout at(c);
  const Array &x = c.reads[0], &out = c.reads[1], &dout = c.reads[2], &lse = c.reads[3];
  Array& dx = c.writes[0];
  each_query(at, [&](int64_t b, int64_t t, int64_t h) {
    double row = 0;
    for (int64_t e = 0; e < at.size; ++e) row += dout[at.out(b, t, h, e)] * out[at.out(b, t, h, e)];
    for (int64_t s = 0; s < at.keys(t); ++s) {
      double p = std::exp(at.score(x, b, t, s, h) - lse[at.lse(b, t, h)]), dp = 0;
      for (int64_t e = 0; e < at.size; ++e) dp += dout[at.out(b, t, h, e)] * x[at.v(b, s, h, e)];
      double dscore = p * (dp - row) * at.scale();
      for (int64_t e = 0; e < at.size; ++e) {
        dx[at.q(b, t, h, e)] += dscore * x[at.k(b, s, h, e)];
        dx[at.k(b, s, h, e)] += dscore * x[at.q(b, t, h, e)];
        dx[at.v(b, s, h, e)] += p * dout[at.out(b, t, h, e)];
      }
    }
  });
}

}  // namespace

const Family attention_rules = {{"attention", attention}, {"attention_grad", attention_grad}};

}  // namespace prun::reference
