// rotary_at and cached_attention by their definition.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

// Returns the radians per token by which pair i of a head is rotated. llama3 and yarn follow transformers'
// modeling_rope_utils.py: llama3 by wavelengths, yarn by the pairs that rotate beta_fast and beta_slow times.
double rotary_speed(const Attrs& attrs, int64_t i) {
  const double rotated = static_cast<double>(attrs.integer("part", attrs.integer("size")));
  const double base = attrs.number("base", 10000), pi = std::acos(-1.0);
  const double speed = std::pow(base, -2 * static_cast<double>(i) / rotated);
  const std::string scaling = attrs.text("scaling");
  const double slow = speed / attrs.number("factor", 1), context = attrs.number("original_context");
  if (scaling == "linear") return slow;
  if (scaling == "longrope") return speed / attrs.numbers("factors").at(i);
  if (scaling == "yarn") {
    const auto dim_of = [&](double turns) {
      return rotated * std::log(context / (turns * 2 * pi)) / (2 * std::log(base));
    };
    double low = dim_of(attrs.number("beta_fast", 32)), high = dim_of(attrs.number("beta_slow", 1));
    if (attrs.number("whole_pairs", 1) != 0) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, rotated - 1);
    if (low == high) high += 0.001;
    const double slowed = std::min(1.0, std::max(0.0, (static_cast<double>(i) - low) / (high - low)));
    return slow * slowed + speed * (1 - slowed);
  }
  if (scaling != "llama3") return speed;
  const double wavelength = 2 * pi / speed;
  const double low = attrs.number("low_freq_factor"), high = attrs.number("high_freq_factor");
  if (wavelength < context / high) return speed;
  if (wavelength > context / low) return slow;
  const double smooth = (context / wavelength - low) / (high - low);
  return (1 - smooth) * slow + smooth * speed;
}

void rotary_at(Call& c) {
  c.writes[0].v = c.reads[0].v;
  for (int64_t r = 0; r < c.reads[0].rows(); ++r) rotate_row(c, r, c.reads[1][r]);
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

void rotate_row(Call& c, int64_t row, double position) {
  const Array& x = c.reads[0];
  const Attrs& attrs = c.attrs;
  const int64_t size = attrs.integer("size"), half = attrs.integer("part", size) / 2;
  const bool neighbors = attrs.integer("interleaved") != 0;
  const double sign = attrs.integer("inverse") != 0 ? -1 : 1, factor = attrs.number("attention_factor", 1);
  for (int64_t i = 0; i < half; ++i) {
    const double angle = sign * position * rotary_speed(attrs, i);
    const double cosine = factor * std::cos(angle), sine = factor * std::sin(angle);
    for (int64_t h = 0; h < attrs.integer("heads"); ++h) {
      const int64_t head = row * x.last() + h * size;
      const int64_t a = head + (neighbors ? 2 * i : i), b = neighbors ? a + 1 : a + half;
      c.writes[0][a] = x[a] * cosine - x[b] * sine;
      c.writes[0][b] = x[b] * cosine + x[a] * sine;
    }
  }
}

const Family decode_rules = {{"rotary_at", rotary_at}, {"cached_attention", cached_attention}};

}  // namespace prun::reference
