// Rotation angles of rotary position embeddings (RoPE), with two scalings that lengthen a model's context: linear (Chen
// et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023) and Llama 3.1's,
// which scales only low frequencies.
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
  double low_freq_factor = 1, high_freq_factor = 4, original_context = 8192;  // llama3 only
};

// Returns radians per token for each pair of a head of 2·half elements: base^(-i/half), scaled. With llama3, a pair
// with fewer than low_freq_factor rotations in the original context is divided by `factor`, one with more than
// high_freq_factor is unchanged, and those between are interpolated linearly.
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

// Reads the parameters from an op's attributes, through number(name, fallback).
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
