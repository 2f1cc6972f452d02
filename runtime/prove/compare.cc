#include "prove/compare.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "ir/ops.h"

namespace prun {
namespace {

constexpr double kLeastLoss = 1e-2;  // a mean close to 0 has the rounding error of its terms

bool near(double found, double right, double scale) {
  return std::abs(found - right) <= kMostDifference * scale;  // false for NaN
}

// Returns the largest finite absolute value; 1 if there is none but 0.
double largest_of(const std::map<int64_t, std::vector<double>>& whole) {
  double largest = 0;
  for (const auto& [key, values] : whole)
    for (const double value : values)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest > 0 ? largest : 1;
}

// Returns whether a value is NaN, infinite, or so large that another order of summation may overflow.
bool overflows(double value) { return !(std::abs(value) < 1e300); }
bool one_overflows(double found, double right) { return overflows(found) != overflows(right); }

class Comparer {
 public:
  Comparer(const RunPair& pair, const CompareOptions& options) : pair_(pair), options_(options) {}

  Comparison run() {
    losses(kLoss, pair_.run.losses, pair_.one.losses);
    for (const StateKind& kind : state_kinds(pair_.one_job)) state(kind);
    if (!options_.own_updates) losses(kEvalLoss, pair_.run.eval_losses, pair_.one.eval_losses);
    result_.overflow = !result_.first && both_overflow();
    if (one_sided_ && !both_overflow() && (!result_.first || one_sided_is_earlier_))
      result_.first = std::move(one_sided_);
    return std::move(result_);
  }

 private:
  using Losses = std::vector<std::vector<double>>;

  void losses(std::string_view what, const Losses& found, const Losses& right) {
    PRUN_CHECK(found.size() == right.size(), std::to_string(found.size()));
    double scale = kLeastLoss;
    for (const std::vector<double>& each : right)
      if (std::isfinite(each.front())) scale = std::max(scale, std::abs(each.front()));
    std::optional<Difference> finite, one_sided;
    for (size_t step = 0; step < found.size(); step++)
      for (size_t rank = 0; rank < found[step].size(); rank++) {
        const double mine = found[step][rank], theirs = right[step].front();
        std::optional<Difference>& first = one_overflows(mine, theirs) ? one_sided : finite;
        if (same(mine, theirs, scale) || first) continue;
        first = {std::string(what), {}, static_cast<int>(rank), -1, {}, mine, theirs, scale};
      }
    keep(std::move(finite), std::move(one_sided));
  }

  bool same(double found, double right, double scale) {
    overflow_found_ = overflow_found_ || overflows(found);
    overflow_right_ = overflow_right_ || overflows(right);
    if (overflows(found) && overflows(right)) return true;
    note(found, right, scale);
    return near(found, right, scale);
  }

  void state(const StateKind& kind) {
    const bool weights = kind.name == kParameters, gradients = kind.name == kGradients;
    if (options_.own_updates && !weights && !gradients) return;
    const bool has_signs = options_.signs && (weights || kind.name == ops::ema.name);
    const std::map<int64_t, std::vector<double>> whole = whole_state(pair_.one_job, pair_.one, kind);
    const double scale = largest_of(whole);
    std::vector<HeldState> all = held_state(pair_.job, pair_.run, kind);
    std::vector<HeldState> means = all;
    take_means(means);
    if (gradients) all = means;
    std::map<int64_t, std::vector<bool>> held_somewhere;
    for (const auto& [key, values] : whole) held_somewhere[key].resize(values.size());
    std::optional<Difference> first, one_sided;
    for (size_t h = 0; h < all.size(); h++)
      for (size_t e = 0; e < all[h].elements.size(); e++) {
        const HeldState::Element& element = all[h].elements[e];
        held_somewhere.at(element.key)[element.whole] = true;
        const double right =
            weights && options_.own_updates ? means[h].elements[e].value : whole.at(element.key)[element.whole];
        if (has_signs && is_rounding(element)) {
          result_.rounded_signs = result_.rounded_signs || !near(element.value, right, scale);
          continue;
        }
        std::optional<Difference>& found = one_overflows(element.value, right) ? one_sided : first;
        // Backward computes the gradients of the last parameters first.
        if (same(element.value, right, scale) || (found && element.key <= found->key)) continue;
        found = {kind.name, kind, all[h].rank, element.key, all[h], element.value, right, scale};
      }
    if (gradients) keep_gradients(whole, scale, all);
    lost(kind, held_somewhere, first);
    for (std::optional<Difference>* each : {&first, &one_sided})
      if (*each)
        std::erase_if((*each)->held.elements, [&](const HeldState::Element& e) { return e.key != (*each)->key; });
    keep(std::move(first), std::move(one_sided));
  }

  // Records the first differences. After both runs have overflowed, differences may follow from the order of overflow,
  // so they are ignored.
  void keep(std::optional<Difference> finite, std::optional<Difference> one_sided) {
    if (one_sided && !one_sided_) {
      one_sided_is_earlier_ = !result_.first && (!finite || one_sided->key > finite->key);
      one_sided_ = std::move(one_sided);
    }
    if (finite && !result_.first && !overflowed_before_) result_.first = std::move(finite);
    overflowed_before_ = both_overflow();
  }

  bool both_overflow() const { return overflow_found_ && overflow_right_; }

  // Detects elements that no rank holds.
  static void lost(const StateKind& kind, const std::map<int64_t, std::vector<bool>>& held,
                   std::optional<Difference>& first) {
    for (const auto& [key, elements] : held)
      if (!first && std::find(elements.begin(), elements.end(), false) != elements.end())
        first = {kind.name, kind, 0, key, {}, NAN, NAN, 1};
  }

  void keep_gradients(const std::map<int64_t, std::vector<double>>& whole, double largest,
                      const std::vector<HeldState>& all) {
    gradients_ = whole;
    largest_gradient_ = largest;
    if (!options_.signs) return;
    for (const HeldState& held : all)
      for (const HeldState::Element& element : held.elements)
        if (element.value != 0) not_zero_.insert({element.key, element.whole});
  }

  // A gradient that is exactly 0 in one run (such as that of the keys' bias) may be rounding error in the other, which
  // sums in another order. A gradient that is 0 in both runs has no sign.
  bool is_rounding(const HeldState::Element& element) const {
    const auto of_parameter = gradients_.find(element.key);
    if (of_parameter == gradients_.end()) return false;  // a frozen parameter
    const double gradient = of_parameter->second[element.whole];
    return std::abs(gradient) < 1e-9 * largest_gradient_ &&
           (gradient != 0 || not_zero_.contains({element.key, element.whole}));
  }

  // Replaces each element by its mean over the ranks that hold it and differ along the drifting axes only.
  void take_means(std::vector<HeldState>& all) const {
    if (options_.drift_axes.empty()) return;
    const Mesh& mesh = pair_.job.classes.front().mesh;
    struct Sum {
      double values = 0;
      int ranks = 0;
    };
    std::map<std::vector<int64_t>, Sum> sums;  // by coordinates along the other axes, parameter, element
    const auto each = [&](auto visit) {
      for (HeldState& held : all) {
        std::vector<int64_t> at;
        for (const Axis& axis : mesh.axes())
          if (std::find(options_.drift_axes.begin(), options_.drift_axes.end(), axis.name) == options_.drift_axes.end())
            at.push_back(mesh.index(axis.name, held.rank));
        at.resize(at.size() + 2);
        for (HeldState::Element& element : held.elements) {
          at.end()[-2] = element.key, at.end()[-1] = element.whole;
          visit(sums[at], element);
        }
      }
    };
    each([](Sum& sum, const HeldState::Element& element) { sum.values += element.value, sum.ranks++; });
    each([](const Sum& sum, HeldState::Element& element) { element.value = sum.values / sum.ranks; });
  }

  void note(double found, double right, double scale) {
    result_.largest = std::max(result_.largest, std::abs(found - right) / scale);
  }

  const RunPair& pair_;
  const CompareOptions& options_;
  std::map<int64_t, std::vector<double>> gradients_;  // gradients of the single-rank run
  double largest_gradient_ = 1;
  std::set<std::pair<int64_t, int64_t>> not_zero_;  // gradients of the ranks: parameter, element
  Comparison result_;
  std::optional<Difference> one_sided_;  // the first number that overflows in one run only
  bool one_sided_is_earlier_ = false;
  bool overflow_found_ = false, overflow_right_ = false;  // in any number so far
  bool overflowed_before_ = false;                        // both runs overflowed in numbers of an earlier kind
};

}  // namespace

Comparison compare(const RunPair& pair, const CompareOptions& options) { return Comparer(pair, options).run(); }

}  // namespace prun
