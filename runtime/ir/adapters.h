// LoRA adapters of a plan (Hu et al. 2021): y = x·W + b + scale·dropout(x)·A·B on its linear layers, whose W is frozen.
//
// Surprising fact: if the plan's weights come from a folder, the base, then checkpoints omit all frozen parameters.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/named_field.h"

namespace prun {

inline constexpr const char* kAdapterA = ".lora_a.weight";  // [in, rank], after the layer's name
inline constexpr const char* kAdapterB = ".lora_b.weight";  // [rank, out]

struct Adapters {
  int64_t rank = 0;  // 0 = the plan has none
  double alpha = 0, dropout = 0;
  std::string match, train;         // patterns of layers with adapters and of parameters that are trained in full
  std::string base;                 // absolute path of the base; "" = the model's initial values
  std::string base_sha256;          // digest of its tensors (checkpoint/base.h); "" until node 0 determines it
  std::vector<std::string> linear;  // weights of the model's linear layers, for exports; node 0 determines them
  bool operator==(const Adapters&) const = default;
  bool any() const { return rank > 0; }
  bool has_base() const { return any() && !base.empty(); }
  double scale() const { return alpha / static_cast<double>(rank); }

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("rank", rank), field("alpha", alpha), field("lora_dropout", dropout), field("match", match),
           field("train", train), field("base", base), field("base_sha256", base_sha256),
           field("linear_layers", linear));
  }
};

}  // namespace prun
