#include "base/curve.h"

#include <cmath>

namespace prun {

double Curve::of(double bytes) const {
  if (at.size() == 1 || bytes <= at.front().first) return at.front().second;
  if (bytes >= at.back().first) return at.back().second;
  size_t next = 1;
  while (at[next].first < bytes) ++next;
  const auto [low, before] = at[next - 1];
  const auto [high, after] = at[next];
  return before * std::pow(after / before, std::log(bytes / low) / std::log(high / low));
}

}  // namespace prun
