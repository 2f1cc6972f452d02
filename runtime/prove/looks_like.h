// What a wrong tensor looks like beside the right one: a factor, a missing summand, another tensor, a permutation.
#pragma once
#include <string>
#include <vector>

namespace prun {

// Numbers that a mistake would give instead of the right ones, up to a factor.
struct Suspect {
  std::string text;  // "what microbatch 2 alone would give"
  std::vector<double> values;
};

struct NamedFactor {
  double factor = 1;
  std::string text;  // "a sum over dp, where the average over its 2 ranks is due"
};

// `scale`: the largest number of that kind, by which equality is meant. Never empty.
std::string looks_like(const std::vector<double>& found, const std::vector<double>& right, double scale,
                       const std::vector<NamedFactor>& factors, const std::vector<Suspect>& suspects);

}  // namespace prun
