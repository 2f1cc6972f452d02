// A measured rate that depends on size.
#pragma once
#include <utility>
#include <vector>

namespace prun {

struct Curve {
  // Points (bytes, rate) by ascending bytes. One point is a constant rate; without points seconds() is 0.
  std::vector<std::pair<double, double>> at;

  // Interpolates logarithmically between points; beyond the ends the rate is constant. Requires a point.
  double of(double bytes) const;
  double seconds(double work, double bytes) const { return at.empty() ? 0 : work / of(bytes); }
  bool operator==(const Curve&) const = default;
};

}  // namespace prun
