#include "prove/compare.h"

#include <algorithm>
#include <cmath>

namespace prun {
namespace {

bool near(double found, double expected, double scale) {
  return std::abs(found - expected) <= kMostDifference * scale;  // NaN is not
}

double largest_of(const std::map<int64_t, std::vector<double>>& whole) {
  double largest = 0;
  for (const auto& [key, values] : whole)
    for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest > 0 ? largest : 1;
}

class Comparer {
 public:
  explicit Comparer(const JobRunPair& pair) : pair_(pair) {}

  Comparison run() {
    losses("loss", pair_.run.losses, pair_.one.losses);
    for (const StateKind& kind : state_kinds(pair_.one_job)) state(kind);
    losses("loss of the evaluation", pair_.run.eval_losses, pair_.one.eval_losses);
    return std::move(result_);
  }

 private:
  using Losses = std::vector<std::vector<double>>;

  void losses(const char* what, const Losses& found, const Losses& expected) {
    for (size_t step = 0; step < std::min(found.size(), expected.size()); step++)
      for (size_t rank = 0; rank < found[step].size(); rank++) {
        const double mine = found[step][rank], right = expected[step].front(), scale = std::abs(right);
        note(mine, right, scale);
        if (near(mine, right, scale) || result_.first) continue;
        result_.first = {what, static_cast<int>(rank), -1, {}, mine, right, scale};
      }
  }

  void state(const StateKind& kind) {
    const std::map<int64_t, std::vector<double>> whole = whole_state(pair_.one_job, pair_.one, kind);
    const double scale = largest_of(whole);
    const HeldState* worst = nullptr;
    int64_t key = -1;
    HeldState::Element at{};
    const std::vector<HeldState> all = held_state(pair_.job, pair_.run, kind);
    for (const HeldState& held : all)
      for (const HeldState::Element& element : held.elements) {
        const double right = whole.at(element.key)[element.whole];
        note(element.value, right, scale);
        // Backward makes the last parameters' gradients first.
        if (near(element.value, right, scale) || element.key <= key) continue;
        worst = &held, key = element.key, at = element;
      }
    if (worst == nullptr || result_.first) return;
    Difference difference{kind.name, worst->rank, key, *worst, at.value, whole.at(key)[at.whole], scale};
    std::erase_if(difference.held.elements, [&](const HeldState::Element& element) { return element.key != key; });
    result_.first = std::move(difference);
  }

  void note(double found, double expected, double scale) {
    const double relative = std::abs(found - expected) / scale;
    result_.largest = std::max(result_.largest, std::isnan(relative) ? INFINITY : relative);
  }

  const JobRunPair& pair_;
  Comparison result_;
};

}  // namespace

double Difference::relative() const { return std::abs(found - expected) / scale; }

Comparison compare(const JobRunPair& pair) { return Comparer(pair).run(); }

}  // namespace prun
