// A measured rate that depends on size.
#pragma once
#include <utility>
#include <vector>

namespace prun {

struct Curve {
  // Bytes and the rate at so many, from the fewest on; one point: the same for all sizes; none: nothing is moved.
  std::vector<std::pair<double, double>> at;

  // Logarithms are interpolated between points; beyond the ends the rate stays. There is a point.
  double of(double bytes) const;
  double seconds(double work, double bytes) const { return at.empty() ? 0 : work / of(bytes); }
  bool operator==(const Curve&) const = default;
};

}  // namespace prun
