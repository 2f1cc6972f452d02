// Computes in doubles, because a large step or warm-up would overflow an integer.
#include "ir/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace prun {
namespace {

double at_step(const RatePiece& piece, int64_t begin, int64_t step) {
  const double t = static_cast<double>(step), b = static_cast<double>(begin);
  if (piece.shape == RateShape::inverse_root) return piece.from * std::sqrt(std::max(b, 1.0) / std::max(t, 1.0));
  const double progress = (t - b) / (static_cast<double>(piece.end) - b);
  // The share of the way that is left. A rising piece adds to its lower end, a falling one too, so that a rate never
  // leaves the piece's bounds by rounding.
  const double left =
      piece.shape == RateShape::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  if (piece.from > piece.to) return piece.to + (piece.from - piece.to) * left;
  return piece.from + (piece.to - piece.from) * (piece.shape == RateShape::cosine ? 1 - left : progress);
}

}  // namespace

double LearningRate::at(int64_t step) const {
  if (step < static_cast<int64_t>(values.size())) return values[static_cast<size_t>(step)];
  const auto piece = std::upper_bound(pieces.begin(), pieces.end(), step,
                                      [](int64_t t, const RatePiece& each) { return t < each.end; });
  if (piece == pieces.end()) return last;
  return at_step(*piece, piece == pieces.begin() ? 0 : (piece - 1)->end, step);
}

double LearningRate::peak() const {
  double most = last;
  for (const RatePiece& piece : pieces) most = std::max({most, piece.from, piece.to});
  for (const double value : values) most = std::max(most, value);
  return most;
}

void LearningRate::scale(double factor) {
  last *= factor;
  for (RatePiece& piece : pieces) piece.from *= factor, piece.to *= factor;
  for (double& value : values) value *= factor;
}

std::string LearningRate::text() const { return curve.empty() ? fmt::format("constant, peak {:g}", last) : curve; }

}  // namespace prun
