// What a rule of the reference device sees: an op whose tensors have become arrays of double.
//
// The kernel loads all reads before the rule runs and stores all writes after it, so an op in place is nothing special,
// and a rule meets a dtype only where its op is several in one, with a rounding between. Writes are zeros at first.
// Whole numbers beyond 2^53 are not exact.
#pragma once
#include <cstdint>
#include <span>
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

// The number of that dtype that `value` is stored as.
double rounded(Dtype dtype, double value);

struct Rule {
  std::string_view kind;
  void (*run)(Call& call);
};

// The families, one file each; reference_device.cc lists them.
std::span<const Rule> matrix_rules();
std::span<const Rule> attention_rules();
std::span<const Rule> row_rules();
std::span<const Rule> pointwise_rules();
std::span<const Rule> piece_rules();
std::span<const Rule> source_rules();
std::span<const Rule> training_rules();
std::span<const Rule> moe_rules();
std::span<const Rule> attention_block_rules();

}  // namespace prun::reference
