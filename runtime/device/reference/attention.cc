// Attention by its definition, one row of scores at a time.
#include <cmath>

#include "device/reference/rules.h"

namespace prun::reference {
namespace {

// Where things lie in qkv [B,T,3d], whose thirds are q, k, v with the heads within, and in out [B,T,d].
struct Layout {
  int64_t batch, length, width, heads;
  bool causal;
  explicit Layout(const Call& c)
      : batch(c.reads[0].shape[0]),
        length(c.reads[0].shape[1]),
        width(c.reads[0].shape[2] / 3),
        heads(c.attrs.integer("heads", 1)),
        causal(c.attrs.integer("causal") != 0) {}
  int64_t head_width() const { return width / heads; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_width())); }
  int64_t qkv(int64_t b, int64_t t, int64_t third, int64_t h, int64_t e) const {
    return ((b * length + t) * 3 + third) * width + h * head_width() + e;
  }
  int64_t out(int64_t b, int64_t t, int64_t h, int64_t e) const {
    return (b * length + t) * width + h * head_width() + e;
  }
  int64_t lse(int64_t b, int64_t t, int64_t h) const { return (b * heads + h) * length + t; }
  int64_t keys(int64_t t) const { return causal ? t + 1 : length; }
  double score(const Array& x, int64_t b, int64_t t, int64_t s, int64_t h) const {
    double sum = 0;
    for (int64_t e = 0; e < head_width(); ++e) sum += x[qkv(b, t, 0, h, e)] * x[qkv(b, s, 1, h, e)];
    return sum * scale();
  }
};

// Calls f(b, t, h) for each query of each head.
template <class F>
void each_query(const Layout& at, F f) {
  for (int64_t b = 0; b < at.batch; ++b)
    for (int64_t h = 0; h < at.heads; ++h)
      for (int64_t t = 0; t < at.length; ++t) f(b, t, h);
}

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
      for (int64_t e = 0; e < at.head_width(); ++e) c.writes[0][at.out(b, t, h, e)] += p * x[at.qkv(b, s, 2, h, e)];
    }
  });
}

// With p the probabilities and dp = dout·vᵀ: dscore = p·(dp − Σ dout·out).
void attention_grad(Call& c) {
  Layout at(c);
  const Array &x = c.reads[0], &out = c.reads[1], &dout = c.reads[2], &lse = c.reads[3];
  Array& dx = c.writes[0];
  each_query(at, [&](int64_t b, int64_t t, int64_t h) {
    double row = 0;
    for (int64_t e = 0; e < at.head_width(); ++e) row += dout[at.out(b, t, h, e)] * out[at.out(b, t, h, e)];
    for (int64_t s = 0; s < at.keys(t); ++s) {
      double p = std::exp(at.score(x, b, t, s, h) - lse[at.lse(b, t, h)]), dp = 0;
      for (int64_t e = 0; e < at.head_width(); ++e) dp += dout[at.out(b, t, h, e)] * x[at.qkv(b, s, 2, h, e)];
      double dscore = p * (dp - row) * at.scale();
      for (int64_t e = 0; e < at.head_width(); ++e) {
        dx[at.qkv(b, t, 0, h, e)] += dscore * x[at.qkv(b, s, 1, h, e)];
        dx[at.qkv(b, s, 1, h, e)] += dscore * x[at.qkv(b, t, 0, h, e)];
        dx[at.qkv(b, s, 2, h, e)] += p * dout[at.out(b, t, h, e)];
      }
    }
  });
}

constexpr Rule kRules[] = {{"attention", attention}, {"attention_grad", attention_grad}};

}  // namespace

std::span<const Rule> attention_rules() { return kRules; }

}  // namespace prun::reference
