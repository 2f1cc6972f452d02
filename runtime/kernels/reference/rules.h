// A rule of the reference device computes an op on arrays of double.
//
// The kernel loads all reads before the rule runs and stores all writes after it, so in-place ops need no special care,
// and only rules of fused ops, which round in between, need a dtype. Writes are zero-initialized. Integers beyond 2^53
// are not exact.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace prun::reference {

struct Array {
  Shape shape;
  Dtype dtype;
  std::vector<double> v;
  double& operator[](int64_t i) { return v[i]; }
  const double& operator[](int64_t i) const { return v[i]; }
  int64_t count() const { return static_cast<int64_t>(v.size()); }
  int64_t last() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const { return last() == 0 ? 0 : count() / last(); }
};

struct Call {
  const Attrs& attrs;
  std::vector<Array> reads, writes;
  const RankMemory& memory;
};

// Returns `value` as that dtype stores it.
double rounded(Dtype dtype, double value);

// Rounds each write to its dtype and adds the op's last reads, one for each write.
void add_sums(Call& call);

// Rotates the heads of row `row` for a token at `position`, back if `inverse` = 1, as rotary and rotary_at do.
void rotate_row(Call& call, int64_t row, double position);

// Returns Σ a[i + e]·b[j + e] over n elements.
inline double dot(const Array& a, int64_t i, const Array& b, int64_t j, int64_t n) {
  double sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += a[i + e] * b[j + e];
  return sum;
}

struct Rule {
  std::string_view kind;
  void (*run)(Call& call);
};

// Calls f(b, t, h) for each query of each head; `at` has the sizes.
template <class Layout, class F>
void each_query(const Layout& at, F f) {
  for (int64_t b = 0; b < at.batch; ++b)
    for (int64_t h = 0; h < at.heads; ++h)
      for (int64_t t = 0; t < at.length; ++t) f(b, t, h);
}

using Family = std::vector<Rule>;

// A new op is a rule in a family; a new family is a file and a name here.
#define PRUN_REFERENCE_FAMILIES(X) \
  X(matrix)                        \
  X(attention)                     \
  X(attend)                        \
  X(convolution)                   \
  X(muon)                          \
  X(adafactor)                     \
  X(row) X(pointwise) X(arithmetic) X(logit) X(piece) X(view) X(source) X(training) X(moe) X(attention_block) X(decode)
#define PRUN_DECLARE(name) extern const Family name##_rules;
PRUN_REFERENCE_FAMILIES(PRUN_DECLARE)
#undef PRUN_DECLARE

}  // namespace prun::reference
