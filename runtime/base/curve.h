// A measured rate that depends on size.
#pragma once
#include <utility>
#include <vector>

namespace prun {

struct Curve {
  // Pairs of bytes and rate, by ascending bytes. One point: a constant rate; none: seconds() is 0.
  std::vector<std::pair<double, double>> at;

  // Interpolates logarithmically between points; constant beyond the ends. Requires a point.
  double of(double bytes) const;
  double seconds(double work, double bytes) const { return at.empty() ? 0 : work / of(bytes); }
  bool operator==(const Curve&) const = default;
};

}  // namespace prun
