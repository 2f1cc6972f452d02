// Computes in doubles, because a large step or warm-up would overflow an integer.
#include "ir/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace prun {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"constant", "warmup", "linear", "cosine"};

}  // namespace

std::string_view rate_kind_name(RateKind kind) { return kNames[static_cast<size_t>(kind)]; }

double LearningRate::at(int64_t step) const {
  const double t = static_cast<double>(step), w = static_cast<double>(warmup);
  if (kind == RateKind::constant) return peak;
  if (step < warmup) return peak * (t / w);
  if (kind == RateKind::warmup) return peak;
  const double progress = std::min(1.0, (t - w) / std::max(1.0, static_cast<double>(steps) - w));
  const double share = kind == RateKind::linear ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return least + (peak - least) * share;
}

std::string LearningRate::text() const {
  std::string words = fmt::format("{}, peak {:g}", rate_kind_name(kind), peak);
  if (kind != RateKind::constant) words += fmt::format(", warmup {}", warmup);
  if (kind == RateKind::linear || kind == RateKind::cosine)
    words += fmt::format(", over {} steps, least {:g}", steps, least);
  return words;
}

}  // namespace prun
