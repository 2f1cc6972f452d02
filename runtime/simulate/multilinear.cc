#include "simulate/multilinear.h"

#include <algorithm>
#include <cmath>

namespace prun::simulate {
namespace {

std::vector<int> bases(const std::vector<Repeated>& dimensions) {
  std::vector<int> sizes;
  for (const Repeated& each : dimensions) sizes.push_back(each.fixed() ? each.wanted : each.base);
  return sizes;
}

}  // namespace

Figures extrapolate(const std::vector<Repeated>& dimensions, const FiguresAt& at, int stride) {
  Figures sum;
  for (unsigned corner = 0; corner < 1U << dimensions.size(); ++corner) {
    std::vector<int> sizes = bases(dimensions);
    double weight = 1;
    bool used = true;
    for (size_t d = 0; d < dimensions.size(); ++d) {
      const bool further = (corner >> d & 1) != 0;
      if (dimensions[d].fixed()) {
        used = used && !further;
        continue;
      }
      const double way = static_cast<double>(dimensions[d].wanted - dimensions[d].base) / stride;
      sizes[d] += further ? stride : 0;
      weight *= further ? way : 1 - way;
    }
    if (!used) continue;
    const Figures figures = at(sizes);
    sum.resize(figures.size());
    for (size_t i = 0; i < figures.size(); ++i) sum[i] += weight * figures[i];
  }
  return sum;
}

double unevenness(const std::vector<Repeated>& dimensions, size_t dimension, const FiguresAt& at) {
  if (dimensions[dimension].fixed()) return 0;
  double figure[3];
  for (int more = 0; more < 3; ++more) {
    std::vector<int> sizes = bases(dimensions);
    sizes[dimension] += more;
    figure[more] = at(sizes).at(0);
  }
  const double first = figure[1] - figure[0], second = figure[2] - figure[1];
  return std::abs(second - first) / std::max(std::abs(first), 1e-9 * std::abs(figure[0]));
}

}  // namespace prun::simulate
