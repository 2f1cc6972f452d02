// rotary_at and cached_attention by their definition.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

void rotary_at(Call& c) {
  const Array &x = c.reads[0], &at = c.reads[1];
  const int64_t width = x.last(), size = c.attrs.integer("size");
  const int64_t half = c.attrs.integer("part", size) / 2;
  c.writes[0].v = x.v;
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t h = 0; h < c.attrs.integer("heads"); ++h)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = at[r] * rotary_speed(c.attrs, i);
        const int64_t e = r * width + h * size + i;
        c.writes[0][e] = x[e] * std::cos(angle) - x[e + half] * std::sin(angle);
        c.writes[0][e + half] = x[e + half] * std::cos(angle) + x[e] * std::sin(angle);
      }
}

// Offsets in qkv and in the cache, whose rows have the heads of k, then of v.
struct CacheLayout {
  int64_t batch, length, heads, kv_heads, size, context;
  explicit CacheLayout(const Call& c)
      : batch(c.reads[0].shape[0]),
        length(c.reads[0].shape[1]),
        heads(c.attrs.integer("heads", 1)),
        kv_heads(c.attrs.integer("kv_heads", heads)),
        size(c.reads[0].last() / (heads + 2 * kv_heads)),
        context(c.reads[2].shape[1]) {}
  int64_t q(int64_t row, int64_t h, int64_t e) const { return (row * (heads + 2 * kv_heads) + h) * size + e; }
  int64_t kept() const { return 2 * kv_heads * size; }
  int64_t k(int64_t b, int64_t position, int64_t h, int64_t e) const {
    return (b * context + position) * kept() + h * kv_heads / heads * size + e;
  }
  int64_t v(int64_t b, int64_t position, int64_t h, int64_t e) const { return k(b, position, h, e) + kept() / 2; }
};

void cached_attention(Call& c) {
  const CacheLayout l(c);
  const Array &x = c.reads[0], &at = c.reads[1];
  Array &out = c.writes[0], &cache = c.writes[1];
  cache.v = c.reads[2].v;
  const auto position = [&](int64_t row) {
    const int64_t p = static_cast<int64_t>(at[row]);
    PRUN_CHECK(p >= 0 && p < l.context, std::to_string(p));
    return p;
  };
  for (int64_t row = 0; row < l.batch * l.length; ++row)
    for (int64_t i = 0; i < l.kept(); ++i)
      cache[(row / l.length * l.context + position(row)) * l.kept() + i] = x[l.q(row, l.heads, 0) + i];
  each_query(l, [&](int64_t b, int64_t t, int64_t h) {
    const int64_t row = b * l.length + t, last = position(row);
    std::vector<double> score;
    for (int64_t s = 0; s <= last; ++s) {
      double dot = 0;
      for (int64_t e = 0; e < l.size; ++e) dot += x[l.q(row, h, e)] * cache[l.k(b, s, h, e)];
      score.push_back(dot / std::sqrt(static_cast<double>(l.size)));
    }
    const double top = *std::max_element(score.begin(), score.end());
    double sum = 0;
    for (double& p : score) sum += p = std::exp(p - top);
    for (int64_t s = 0; s <= last; ++s)
      for (int64_t e = 0; e < l.size; ++e)
        out[(row * l.heads + h) * l.size + e] += score[s] / sum * cache[l.v(b, s, h, e)];
  });
}

}  // namespace

// llama3 follows transformers' modeling_rope_utils.py, by wavelengths.
double rotary_speed(const Attrs& attrs, int64_t i) {
  const int64_t rotated = attrs.integer("part", attrs.integer("size"));
  const double speed =
      std::pow(attrs.number("base", 10000), -2 * static_cast<double>(i) / static_cast<double>(rotated));
  const std::string scaling = attrs.text("scaling");
  const double slow = speed / attrs.number("factor", 1);
  if (scaling == "linear") return slow;
  if (scaling != "llama3") return speed;
  const double wavelength = 2 * std::acos(-1.0) / speed, context = attrs.number("original_context");
  const double low = attrs.number("low_freq_factor"), high = attrs.number("high_freq_factor");
  if (wavelength < context / high) return speed;
  if (wavelength > context / low) return slow;
  const double smooth = (context / wavelength - low) / (high - low);
  return (1 - smooth) * slow + smooth * speed;
}

const Family decode_rules = {{"rotary_at", rotary_at}, {"cached_attention", cached_attention}};

}  // namespace prun::reference
