// Extrapolates figures from small sizes, because each further repetition adds the same amount.
#pragma once
#include <functional>
#include <vector>

namespace prun::simulate {

// A size that repeats, its base and the requested value: from `base` on each further one adds the same amount.
struct Repeated {
  int base = 1, wanted = 1;
  bool fixed() const { return wanted <= base + 2; }  // computing all sizes is as cheap
};

using Figures = std::vector<double>;
using FiguresAt = std::function<Figures(const std::vector<int>& sizes)>;

// Returns the figures at the requested size of every dimension, multilinear (with all cross terms), from the sizes
// `base` and `base` + `stride`.
Figures extrapolate(const std::vector<Repeated>& dimensions, const FiguresAt& at, int stride = 1);

// Returns the relative difference between the first and second increment of the first figure from `base` on.
double unevenness(const std::vector<Repeated>& dimensions, size_t dimension, const FiguresAt& at);

}  // namespace prun::simulate
