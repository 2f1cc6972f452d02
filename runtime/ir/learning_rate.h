// The learning rate as a function of the step, which executor and interpreter write to the step table.
//
//     rate ^        ______            pieces:  linear 0 to 1e-3, flat, cosine 1e-3 to 1e-4
//          |      /        \          last:    1e-4, for all later steps
//          |    /            \____
//          +--------------------> step
//
// Lua (lua/prun/learning_rate.lua) makes the pieces; each curve of PyTorch's lr_scheduler is a few of them. Surprising
// fact: a warm-up that starts at 0 gives step 0 the rate 0, in PyTorch as here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace prun {

// With p = (t - begin) / (end - begin): linear from + (to - from) · p; cosine from + (to - from) · (1 - cos πp) / 2;
// inverse_root from · √(begin / t), which ignores `to`, and where begin counts as at least 1.
enum class RateShape : uint8_t { linear, cosine, inverse_root };
inline constexpr std::string_view kRateShapes[] = {"linear", "cosine", "inverse_root"};

struct RatePiece {
  RateShape shape = RateShape::linear;
  int64_t end = 0;  // the first step after it, counted from 0; it begins at the previous piece's end
  double from = 0, to = 0;
  bool operator==(const RatePiece&) const = default;
};

struct LearningRate {
  std::string curve;              // its name and options: "cosine, peak 0.0003, warmup 10, ..."; "" = constant
  std::vector<RatePiece> pieces;  // in order of their ends
  std::vector<double> values;     // instead of pieces: the rates of steps 0, 1, ..
  double last = 0;                // the rate after all pieces or values

  double at(int64_t step) const;  // the rate of a step, counted from 0
  double peak() const;            // the greatest rate that a piece, a value or `last` names
  void scale(double factor);      // multiplies all rates
  std::string text() const;       // complete, so that equal texts are equal curves
};

}  // namespace prun
