// By how much rotary turns each pair of a head a token, with the two scalings that lengthen a model's context: linear
// (Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023) and
// Llama 3.1's, which slows down what turns slowly only.
#pragma once
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

namespace prun::sdk {

struct RotaryAngles {
  double base = 10000;
  std::string_view scaling;  // "", "linear", "llama3"
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4, original_context = 8192;  // of llama3
};

// Radians a token, of each pair of a head of 2·half elements: base^(-i/half), scaled. With llama3, pairs that turn
// round less than low_freq_factor times in the original context are slowed down by `factor`, those above
// high_freq_factor not at all, and the ones between in proportion.
inline std::vector<double> rotary_speeds(int64_t half, const RotaryAngles& angles) {
  std::vector<double> speeds;
  for (int64_t i = 0; i < half; ++i) {
    double speed = std::pow(angles.base, -static_cast<double>(i) / static_cast<double>(half));
    if (angles.scaling == "linear") {
      speed /= angles.factor;
    } else if (angles.scaling == "llama3") {
      const double turns = angles.original_context * speed / (2 * 3.14159265358979323846);
      const double range = angles.high_freq_factor - angles.low_freq_factor;
      double kept = (turns - angles.low_freq_factor) / range;
      kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
      speed = (1 - kept) * speed / angles.factor + kept * speed;
    }
    speeds.push_back(speed);
  }
  return speeds;
}

// From the attributes of an op, as number(name, fallback) has them.
template <class Number>
std::vector<double> rotary_speeds(int64_t half, std::string_view scaling, const Number& number) {
  RotaryAngles angles;
  angles.scaling = scaling;
  angles.base = number("base", angles.base);
  angles.factor = number("factor", angles.factor);
  angles.low_freq_factor = number("low_freq_factor", angles.low_freq_factor);
  angles.high_freq_factor = number("high_freq_factor", angles.high_freq_factor);
  angles.original_context = number("original_context", angles.original_context);
  return rotary_speeds(half, angles);
}

}  // namespace prun::sdk
