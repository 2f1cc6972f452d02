// Ops that make values: constants, and random numbers by prun/philox.h.
//
// Random values are f32 numbers on every device, f64 plans included, so that a plan starts from the same weights on all
// of them. So this file multiplies in float, without fused multiply-adds.
#include <fmt/format.h>

#include "base/error.h"
#include "kernels/reference/parameter_elements.h"
#include "kernels/reference/rules.h"
#include "prun/philox.h"

namespace prun::reference {
namespace {

enum Kind : int64_t { kZeros = 0, kOnes = 1, kConstant = 2, kNormal = 3, kUniform = 4 };

// Returns element e of the sequence `key`. Block e/4 has four words, and two neighbours share a pair of normals.
float normal(uint64_t seed, uint64_t key, int64_t e) {
  philox::Words words = philox::block(seed, key, static_cast<uint64_t>(e / 4));
  philox::Pair pair = e % 4 < 2 ? philox::normals(words[0], words[1]) : philox::normals(words[2], words[3]);
  return e % 2 == 0 ? pair.first : pair.second;
}
float uniform(uint64_t seed, uint64_t key, int64_t e) {
  philox::Words words = philox::block(seed, key, static_cast<uint64_t>(e / 4));
  return 2.0f * philox::unit(words[e % 4]) - 1.0f;
}

float initial(int64_t kind, float scale, uint64_t seed, uint64_t key, int64_t e) {
  if (kind == kOnes) return 1;
  if (kind == kConstant) return scale;
  if (kind == kNormal) return scale * normal(seed, key, e);
  if (kind == kUniform) return scale * uniform(seed, key, e);
  return 0;
}

void init_params(Call& c) {
  const std::vector<int64_t> kinds = c.attrs.integers("kinds");
  const std::vector<double> scales = c.attrs.numbers("scales");
  for (const ParameterElement& at : parameter_elements(c.attrs, c.writes[0].count(), c.memory))
    c.writes[0][at.here] = initial(kinds[at.parameter], static_cast<float>(scales[at.parameter]), c.memory.table->seed,
                                   static_cast<uint64_t>(at.key), at.whole);
}

void random_int(Call& c) {
  for (int64_t i = 0; i < c.writes[0].count(); ++i) {
    uint64_t index = (static_cast<uint64_t>(c.memory.rank) << 32) | static_cast<uint64_t>(i);
    c.writes[0][i] =
        static_cast<double>(philox::integer(c.memory.table->seed, static_cast<uint64_t>(c.attrs.integer("key")), index,
                                            c.attrs.integer("low"), c.attrs.integer("high")));
  }
}

void fill(Call& c) {
  for (double& value : c.writes[0].v) value = c.attrs.number("value");
}

void values(Call& c) {
  std::vector<double> list = c.attrs.numbers("values");
  PRUN_CHECK(list.size() == c.writes[0].v.size(), std::to_string(list.size()));
  std::copy(list.begin(), list.end(), c.writes[0].v.begin());
}

// With a count, only the first `count` elements are set and the others are 0.
void iota(Call& c) {
  const double most = static_cast<double>(c.writes[0].count()), limit = c.reads.empty() ? most : c.reads[0][0];
  if (limit < 0 || limit > most) throw plan_error(fmt::format("iota of {} elements, should be 0 to {}", limit, most));
  for (int64_t i = 0; i < c.writes[0].count() && static_cast<double>(i) < limit; ++i)
    c.writes[0][i] = c.attrs.number("start") + static_cast<double>(i) * c.attrs.number("step", 1);
}

}  // namespace

const Family source_rules = {
    {"init_params", init_params}, {"random_int", random_int}, {"fill", fill}, {"values", values}, {"iota", iota}};

}  // namespace prun::reference
