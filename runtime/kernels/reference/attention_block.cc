// One hop of ring attention by its definition: each query compares its position with that of each key.
#include <cmath>

#include "device/share.h"
#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

// Offsets in qkv [B,T,(heads + 2·kv_heads)·size], kv [B,T,2·kv_heads·size] and out [B,T,heads·size], and the positions
// of the rank's queries and of the keys, which belong to the rank `hop` places before it.
struct BlockLayout {
  int64_t batch, length, heads, kv_heads, size;
  bool causal;
  int64_t chunk;
  Share queries, keys;

  explicit BlockLayout(const Call& c)
      : batch(c.reads[0].shape[0]),
        length(c.reads[0].shape[1]),
        heads(c.attrs.integer("heads", 1)),
        kv_heads(c.attrs.integer("kv_heads", heads)),
        size(c.reads[0].shape[2] / (heads + 2 * kv_heads)),
        causal(c.attrs.integer("causal") != 0),
        chunk(length / c.attrs.integer("chunks", 1)),
        queries(share_along(c.memory, c.attrs.text("tokens_axis"))) {
    const int64_t of = queries.of, hop = c.attrs.integer("hop") % of;
    keys = {(queries.index - hop + of) % of, of};
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(size)); }
  int64_t position(const Share& rank, int64_t t) const {
    return t < chunk ? rank.index * chunk + t : (2 * rank.of - 1 - rank.index) * chunk + t - chunk;
  }
  bool sees(int64_t t, int64_t s) const { return !causal || position(keys, s) <= position(queries, t); }
  int64_t q(int64_t b, int64_t t, int64_t h) const { return ((b * length + t) * (heads + 2 * kv_heads) + h) * size; }
  int64_t k(int64_t b, int64_t s, int64_t h) const {
    return ((b * length + s) * 2 * kv_heads + h * kv_heads / heads) * size;
  }
  int64_t v(int64_t b, int64_t s, int64_t h) const { return k(b, s, h) + kv_heads * size; }
  int64_t out(int64_t b, int64_t t, int64_t h) const { return ((b * length + t) * heads + h) * size; }
  int64_t lse(int64_t b, int64_t t, int64_t h) const { return (b * heads + h) * length + t; }
};

void attention_block(Call& c) {
  BlockLayout at(c);
  const Array &qkv = c.reads[0], &kv = c.reads[1];
  Array &out = c.writes[0], &lse = c.writes[1];
  each_query(at, [&](int64_t b, int64_t t, int64_t h) {
    const int64_t row = at.out(b, t, h), row_lse = at.lse(b, t, h);
    auto score = [&](int64_t s) { return dot(qkv, at.q(b, t, h), kv, at.k(b, s, h), at.size) * at.scale(); };
    const bool first = c.reads.size() < 4;
    double before = first ? -INFINITY : c.reads[3][row_lse], top = before;
    for (int64_t s = 0; s < at.length; ++s)
      if (at.sees(t, s)) top = std::max(top, score(s));
    double sum = std::exp(before - top);
    for (int64_t s = 0; s < at.length; ++s)
      if (at.sees(t, s)) sum += std::exp(score(s) - top);
    lse[row_lse] = top + std::log(sum);
    for (int64_t e = 0; e < at.size; ++e)
      out[row + e] = first ? 0 : c.reads[2][row + e] * std::exp(before - lse[row_lse]);
    for (int64_t s = 0; s < at.length; ++s) {
      if (!at.sees(t, s)) continue;
      double p = std::exp(score(s) - lse[row_lse]);
      for (int64_t e = 0; e < at.size; ++e) out[row + e] += p * kv[at.v(b, s, h) + e];
    }
  });
}

void attention_block_grad(Call& c) {
  BlockLayout at(c);
  const Array &qkv = c.reads[0], &kv = c.reads[1], &out = c.reads[2], &dout = c.reads[3], &lse = c.reads[4];
  Array &dq = c.writes[0], &dkv = c.writes[1];
  if (c.reads.size() > 5) dq.v = c.reads[5].v;
  each_query(at, [&](int64_t b, int64_t t, int64_t h) {
    const int64_t row = at.out(b, t, h), q = at.q(b, t, h);
    double along = dot(dout, row, out, row, at.size);
    for (int64_t s = 0; s < at.length; ++s) {
      if (!at.sees(t, s)) continue;
      const int64_t k = at.k(b, s, h), v = at.v(b, s, h);
      double p = std::exp(dot(qkv, q, kv, k, at.size) * at.scale() - lse[at.lse(b, t, h)]);
      double dscore = p * (dot(dout, row, kv, v, at.size) - along) * at.scale();
      for (int64_t e = 0; e < at.size; ++e) {
        dq[row + e] += dscore * kv[k + e];
        dkv[k + e] += dscore * qkv[q + e];
        dkv[v + e] += p * dout[row + e];
      }
    }
  });
}

void copy_kv(Call& c) {
  int64_t wide = c.reads[0].last(), shared = c.writes[0].last();
  for (int64_t r = 0; r < c.writes[0].rows(); ++r)
    for (int64_t i = 0; i < shared; ++i) c.writes[0][r * shared + i] = c.reads[0][(r + 1) * wide - shared + i];
}

void join_qkv(Call& c) {
  int64_t width = c.reads[0].last(), wide = c.writes[0].last();
  for (int64_t r = 0; r < c.writes[0].rows(); ++r)
    for (int64_t i = 0; i < wide; ++i)
      c.writes[0][r * wide + i] = i < width ? c.reads[0][r * width + i] : c.reads[1][r * (wide - width) + i - width];
}

}  // namespace

const Family attention_block_rules = {{"attention_block", attention_block},
                                      {"attention_block_grad", attention_block_grad},
                                      {"copy_kv", copy_kv},
                                      {"join_qkv", join_qkv}};

}  // namespace prun::reference
