// Figures at a size that was not computed, from those at sizes beside each other: what repeats adds the same each time.
#pragma once
#include <functional>
#include <vector>

namespace prun::simulate {

// A size that repeats: from `base` on every one more adds the same; `wanted` is asked for.
struct Repeated {
  int base = 1, wanted = 1;
  bool fixed() const { return wanted <= base + 2; }  // nothing is saved
};

using Figures = std::vector<double>;
using FiguresAt = std::function<Figures(const std::vector<int>& sizes)>;

// The figures at `wanted` of every dimension: linear in each, with all their products; from `base` and `stride` more.
Figures extrapolate(const std::vector<Repeated>& dimensions, const FiguresAt& at, int stride = 1);

// How much the second increment of the first figure from `base` on differs from the first one, relative to it.
double unevenness(const std::vector<Repeated>& dimensions, size_t dimension, const FiguresAt& at);

}  // namespace prun::simulate
