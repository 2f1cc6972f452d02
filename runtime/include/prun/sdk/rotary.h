// Rotation angles of rotary position embeddings (RoPE), with scalings that lengthen a model's context: linear (Chen et
// al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023), Llama 3.1's, which
// scales only low frequencies, YaRN (Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models",
// 2023), which scales by a ramp over the pairs, and LongRoPE (Ding et al., 2024), which has a factor for each pair.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

namespace prun::sdk {

struct RotaryAngles {
  double base = 10000;
  std::string_view scaling;  // "", "linear", "llama3", "yarn", "longrope"
  double factor = 1;
  double original_context = 8192;                    // llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn: rotations in the original context
  bool whole_pairs = true;                           // yarn: the ramp starts and ends at whole pairs
  std::vector<double> factors = {};                  // longrope: of each pair
};

constexpr double kTwoPi = 6.283185307179586;

// Returns the share of each pair's angle that YaRN leaves unscaled: 1 for the first pairs, 0 for the last ones. The
// ramp begins at the pair that rotates beta_fast times in the original context and ends at that of beta_slow.
inline double yarn_kept(int64_t i, int64_t half, const RotaryAngles& angles) {
  const double pairs = static_cast<double>(half);
  const auto pair_of = [&](double rotations) {
    return pairs * std::log(angles.original_context / (rotations * kTwoPi)) / std::log(angles.base);
  };
  double first = pair_of(angles.beta_fast), last = pair_of(angles.beta_slow);
  if (angles.whole_pairs) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, 2 * pairs - 1);
  if (first == last) last += 0.001;
  return 1 - std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
}

// Returns radians per token for each pair of a head of 2·half elements: base^(-i/half), scaled. With llama3, a pair
// with fewer than low_freq_factor rotations in the original context is divided by `factor`, one with more than
// high_freq_factor is unchanged, and those between are interpolated linearly.
inline std::vector<double> rotary_speeds(int64_t half, const RotaryAngles& angles) {
  std::vector<double> speeds;
  speeds.reserve(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    double speed = std::pow(angles.base, -static_cast<double>(i) / static_cast<double>(half));
    if (angles.scaling == "linear") {
      speed /= angles.factor;
    } else if (angles.scaling == "llama3") {
      const double turns = angles.original_context * speed / kTwoPi;
      const double range = angles.high_freq_factor - angles.low_freq_factor;
      const double kept = std::clamp((turns - angles.low_freq_factor) / range, 0.0, 1.0);
      speed = (1 - kept) * speed / angles.factor + kept * speed;
    } else if (angles.scaling == "yarn") {
      const double kept = yarn_kept(i, half, angles);
      speed = (1 - kept) * speed / angles.factor + kept * speed;
    } else if (angles.scaling == "longrope") {
      speed /= angles.factors[static_cast<size_t>(i)];
    }
    speeds.push_back(speed);
  }
  return speeds;
}

// Reads the parameters from an op's attributes, through number(name, fallback). `factors` are those of longrope.
template <class Number>
std::vector<double> rotary_speeds(int64_t half, std::string_view scaling, std::vector<double> factors,
                                  const Number& number) {
  RotaryAngles angles;
  angles.scaling = scaling;
  angles.factors = std::move(factors);
  angles.base = number("base", angles.base);
  angles.factor = number("factor", angles.factor);
  angles.low_freq_factor = number("low_freq_factor", angles.low_freq_factor);
  angles.high_freq_factor = number("high_freq_factor", angles.high_freq_factor);
  angles.original_context = number("original_context", angles.original_context);
  angles.beta_fast = number("beta_fast", angles.beta_fast);
  angles.beta_slow = number("beta_slow", angles.beta_slow);
  angles.whole_pairs = number("whole_pairs", 1) != 0;
  return rotary_speeds(half, angles);
}

}  // namespace prun::sdk
