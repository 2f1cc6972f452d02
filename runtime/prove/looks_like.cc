// Patterns that relate a wrong tensor to the right one: a factor, a missing term, another tensor, a permutation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "prove/explain.h"

namespace prun {
namespace {

constexpr double kClose = 1e-10;  // relative to the larger of the tensor's largest number and 1e-3 of `scale`

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

bool close(const std::vector<double>& a, const std::vector<double>& b, double factor, double scale) {
  const double bound = kClose * std::max(largest(a), 1e-3 * scale);
  for (size_t i = 0; i < a.size(); i++)
    if (!(std::abs(a[i] - factor * b[i]) <= bound)) return false;
  return true;
}

// Returns the least-squares factor if it fits; nullopt if it does not, or if `right` is all zeros.
std::optional<double> factor_of(const std::vector<double>& found, const std::vector<double>& right, double scale) {
  double both = 0, own = 0;
  for (size_t i = 0; i < right.size(); i++) both += found[i] * right[i], own += right[i] * right[i];
  if (own == 0 || !close(found, right, both / own, scale)) return std::nullopt;
  return both / own;
}

std::string factor_text(double factor) {
  if (factor < 0) return fmt::format("{:.6g} times the right numbers", factor);
  const double whole = std::round(factor), part = std::round(1 / factor);
  if (std::abs(factor - whole) < 1e-9 * factor) return fmt::format("{:.0f} times too large", factor);
  if (std::abs(1 / factor - part) < 1e-9 / factor) return fmt::format("1/{:.0f} of the right numbers", part);
  return fmt::format("{:.6g} times the right numbers", factor);
}

// Detects permuted runs of equal length: "parts 0 and 1 of 2 have changed places".
std::string exchanged_parts(const std::vector<double>& found, const std::vector<double>& right, double scale) {
  const size_t n = right.size();
  for (size_t parts = 2; parts <= std::min<size_t>(n / 2, 16); parts++) {
    if (n % parts != 0) continue;
    const size_t length = n / parts;
    std::vector<size_t> from(parts, parts);
    for (size_t p = 0; p < parts; p++) {
      const auto part = [&](const std::vector<double>& all, size_t at) {
        return std::vector<double>(all.begin() + static_cast<long>(at * length),
                                   all.begin() + static_cast<long>((at + 1) * length));
      };
      for (size_t q = 0; q < parts && from[p] == parts; q++)
        if (close(part(found, p), part(right, q), 1, scale)) from[p] = q;
    }
    std::vector<size_t> wrong;
    for (size_t p = 0; p < parts; p++)
      if (from[p] != p) wrong.push_back(p);
    if (std::find(from.begin(), from.end(), parts) == from.end() && !wrong.empty())
      return fmt::format("its parts in another order: part {} of {} is where part {} belongs", from[wrong[0]], parts,
                         wrong[0]);
  }
  return "";
}

}  // namespace

std::string looks_like(const std::vector<double>& found, const std::vector<double>& right, double scale,
                       const std::vector<NamedFactor>& factors, const std::vector<Suspect>& suspects) {
  const auto missing = std::count_if(found.begin(), found.end(), [](double value) { return std::isnan(value); });
  if (missing > 0)
    return fmt::format("{} of {} numbers are NaN: memory that is not written yet, or already reused", missing,
                       found.size());
  if (largest(found) == 0) return "zeros: nothing has arrived here";
  for (const Suspect& suspect : suspects)
    if (suspect.values.size() == found.size() && close(found, suspect.values, 1, scale)) return suspect.text;
  if (const std::optional<double> factor = factor_of(found, right, scale)) {
    std::string text = factor_text(*factor);
    for (const NamedFactor& named : factors)
      if (std::abs(named.factor - *factor) < 1e-9 * *factor) return fmt::format("{}: {}", text, named.text);
    return text;
  }
  for (const Suspect& suspect : suspects) {
    if (suspect.values.size() != found.size()) continue;
    if (const auto factor = factor_of(found, suspect.values, scale))
      return fmt::format("{} ({})", suspect.text, factor_text(*factor));
  }
  if (const std::string text = exchanged_parts(found, right, scale); !text.empty()) return text;
  std::vector<double> sorted = found, wanted = right;
  std::sort(sorted.begin(), sorted.end());
  std::sort(wanted.begin(), wanted.end());
  if (close(sorted, wanted, 1, scale)) return "the same numbers in another order: a permutation";
  size_t first = found.size(), same = 0;
  for (size_t i = 0; i < found.size(); i++) {
    if (std::abs(found[i] - right[i]) <= kClose * std::max(largest(right), 1e-3 * scale))
      same++;
    else
      first = std::min(first, i);
  }
  if (same > 0)
    return fmt::format("{} of {} numbers are right, element {} is the first that is not", same, found.size(), first);
  return "no factor, no missing summand, no permutation";
}

}  // namespace prun
