// If there are too many combinations, the search first estimates all meshes with the plan's other arguments. It then
// repeatedly varies the best candidates in one argument, and in two once that yields nothing new.
#include "predict/candidates.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace prun {
namespace {

constexpr size_t kBest = 8;  // candidates whose neighbours are tried

// Returns a sort key, lower is better: first 0 = fits, 1 = does not fit, 2 = no such plan.
std::tuple<int, double> key(const Ranked& of) {
  if (!of.wrong.empty()) return {2, 0};
  if (!of.fits()) return {1, of.estimate.peak_bytes / of.estimate.memory_bytes};
  return {0, of.estimate.step_s};
}

class Search {
 public:
  Search(const SearchSpace& space, int most, const EstimateAll& estimate)
      : space_(space), most_(static_cast<size_t>(most)), estimate_(estimate) {}

  std::vector<Ranked> run() {
    const bool all = space_.combinations() <= static_cast<int64_t>(most_);
    take(combinations([&](const SearchedArgument& argument) { return all || argument.of_mesh; }));
    if (!all) look_around();
    sort();
    return std::move(ranked_);
  }

 private:
  template <class Varies>
  std::vector<Combination> combinations(const Varies& varies) const {
    std::vector<Combination> made = {Combination(space_.arguments.size(), 0)};
    for (size_t i = 0; i < space_.arguments.size(); ++i) {
      if (!varies(space_.arguments[i])) continue;
      std::vector<Combination> more;
      for (const Combination& each : made)
        for (int value = 0; value < std::ssize(space_.arguments[i].values) && more.size() < most_; ++value) {
          more.push_back(each);
          more.back()[i] = value;
        }
      made = std::move(more);
    }
    return made;
  }

  // Estimates the combinations that are new. Returns false if there is none, or the limit is reached.
  bool take(const std::vector<Combination>& combinations) {
    std::vector<Combination> fresh;
    for (const Combination& each : combinations)
      if (seen_.size() < most_ && seen_.insert(each).second) fresh.push_back(each);
    for (Ranked& each : estimate_(fresh)) ranked_.push_back(std::move(each));
    return !fresh.empty();
  }

  void sort() {
    std::stable_sort(ranked_.begin(), ranked_.end(), [](const Ranked& a, const Ranked& b) { return key(a) < key(b); });
    std::set<size_t> plans;
    std::erase_if(ranked_, [&](const Ranked& each) { return each.wrong.empty() && !plans.insert(each.plan).second; });
  }

  std::vector<Combination> neighbours(const Combination& of, bool pairs) const {
    std::vector<Combination> all;
    for (size_t i = 0; i < of.size(); ++i)
      for (int value = 0; value < std::ssize(space_.arguments[i].values); ++value) {
        Combination one = of;
        one[i] = value;
        if (!pairs) all.push_back(one);
        for (size_t j = i + 1; pairs && j < of.size(); ++j)
          for (int other = 0; other < std::ssize(space_.arguments[j].values); ++other) {
            Combination two = one;
            two[j] = other;
            all.push_back(two);
          }
      }
    return all;
  }

  void look_around() {
    while (seen_.size() < most_) {
      sort();
      bool found = false;
      for (const bool pairs : {false, true}) {
        std::vector<Combination> near;
        for (size_t i = 0; i < std::min(kBest, ranked_.size()); ++i)
          for (Combination& each : neighbours(ranked_[i].combination, pairs)) near.push_back(std::move(each));
        if ((found = take(near))) break;
      }
      if (!found) return;
    }
  }

  const SearchSpace& space_;
  const size_t most_;
  const EstimateAll& estimate_;
  std::set<Combination> seen_;
  std::vector<Ranked> ranked_;
};

}  // namespace

std::vector<Ranked> rank_candidates(const SearchSpace& space, int most, const EstimateAll& estimate) {
  return Search(space, most, estimate).run();
}

}  // namespace prun
