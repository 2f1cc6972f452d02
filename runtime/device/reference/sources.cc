// Ops that make values: constants, and random numbers by prun/philox.h.
//
// Random values are f32 numbers on every device, f64 plans included, so that a plan starts from the same weights
// wherever it runs; hence the products in float below, and no fused multiply-adds in this file.
#include "base/error.h"
#include "device/reference/rules.h"
#include "device/share.h"
#include "prun/philox.h"

namespace prun::reference {
namespace {

enum Kind : int64_t { kZeros = 0, kOnes = 1, kConstant = 2, kNormal = 3, kUniform = 4 };

// Element e of the sequence `key`: block e/4 has four words, and two neighbours share a pair of normals.
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

// How a rank's element of a parameter is numbered in the whole one when it is split: by row, block, slice.
struct Split {
  int64_t slice;
  std::vector<int64_t> blocks;  // elements of the whole
  Share share;
  int64_t room(int64_t block) const { return (block / slice + share.of - 1) / share.of * slice; }
  // -1: padding
  int64_t whole(int64_t e) const {
    int64_t row = 0, whole_row = 0, begin = 0;
    for (int64_t block : blocks) row += room(block), whole_row += block;
    int64_t within = e % row;
    for (int64_t block : blocks) {
      if (within < room(block)) {
        int64_t at = share.index * room(block) + within;
        return at < block ? e / row * whole_row + begin + at : -1;
      }
      within -= room(block), begin += block;
    }
    return -1;
  }
};

void init_params(Call& c) {
  Array& flat = c.writes[0];
  int64_t first = flat.count() * share_along(c.memory, c.attrs.text("axis")).index;
  auto list = [&](const char* name) { return c.attrs.integers(name); };
  std::vector<int64_t> starts = list("starts"), counts = list("counts"), kinds = list("kinds"), keys = list("keys");
  std::vector<int64_t> outer = list("split_outer"), slices = list("split_slice"), blocks = list("split_blocks");
  std::vector<std::string> axes = names_between_commas(c.attrs.text("split_axis"));
  std::vector<double> scales = c.attrs.numbers("scales");
  auto block = blocks.begin();
  for (size_t p = 0; p < starts.size(); ++p) {
    bool is_split = !outer.empty() && outer[p] != 0;
    Split split{1, {}, {}};
    if (is_split) {
      auto end = block + list("split_block_count")[p];
      split = {slices[p], {block, end}, share_along(c.memory, axes[p])};
      block = end;
    }
    for (int64_t g = std::max(first, starts[p]); g < std::min(first + flat.count(), starts[p] + counts[p]); ++g) {
      int64_t e = is_split ? split.whole(g - starts[p]) : g - starts[p];
      if (e >= 0)
        flat[g - first] =
            initial(kinds[p], static_cast<float>(scales[p]), c.memory.table->seed, static_cast<uint64_t>(keys[p]), e);
    }
  }
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

// With a count, only so many elements are counted and the rest are 0.
void iota(Call& c) {
  double limit = c.reads.empty() ? static_cast<double>(c.writes[0].count()) : c.reads[0][0];
  for (int64_t i = 0; i < c.writes[0].count() && static_cast<double>(i) < limit; ++i)
    c.writes[0][i] = c.attrs.number("start") + static_cast<double>(i) * c.attrs.number("step", 1);
}

}  // namespace

const Family source_rules = {
    {"init_params", init_params}, {"random_int", random_int}, {"fill", fill}, {"values", values}, {"iota", iota}};

}  // namespace prun::reference
