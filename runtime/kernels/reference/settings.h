// The settings of an optimizer's elements, by piece of the vector.
#pragma once
#include <string>
#include <vector>

#include "device/share.h"
#include "kernels/reference/rules.h"

namespace prun::reference {

// Settings by element: those of the last piece that starts at or before it, otherwise those of the op.
struct Settings {
  std::vector<int64_t> starts;
  std::vector<double> factors, decays;
  int64_t first;  // element of the vector in which the op's begin
  double rate, factor, decay;

  Settings(const Call& c, double usual_decay)
      : starts(c.attrs.integers("piece_starts")),
        factors(c.attrs.numbers("piece_lr_factors")),
        decays(c.attrs.numbers("piece_weight_decays")),
        first(share_along(c.memory, c.attrs.text("axis")).index * c.attrs.integer("shard")),
        rate(c.memory.table->learning_rate),
        factor(c.attrs.number("lr_factor", 1)),
        decay(c.attrs.number("weight_decay", usual_decay)) {}

  struct Pair {
    double lr, decay;
  };
  Pair at(int64_t i) const {
    for (size_t p = starts.size(); p-- > 0;)
      if (first + i >= starts[p]) return {rate * factors[p], decays[p]};
    return {rate * factor, decay};
  }
};

}  // namespace prun::reference
