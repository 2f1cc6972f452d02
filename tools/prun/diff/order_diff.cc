#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "diff/plan_facts.h"

namespace prun {
namespace {

constexpr size_t kExamples = 3;

// Labels ops uniquely, by label and occurrence, because lists may repeat a label.
std::vector<std::string> numbered(const std::vector<std::string>& labels) {
  std::map<std::string, int> seen;
  std::vector<std::string> list;
  for (const std::string& label : labels) {
    const int n = seen[label]++;
    list.push_back(n == 0 ? label : fmt::format("{} (number {})", label, n + 1));
  }
  return list;
}

// Returns which of the distinct numbers belong to a longest increasing subsequence (patience sorting).
std::vector<bool> in_longest_rise(const std::vector<int>& numbers) {
  std::vector<int> tops, before(numbers.size(), -1), piles;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto at = std::lower_bound(tops.begin(), tops.end(), numbers[i]) - tops.begin();
    if (at == std::ssize(tops)) {
      tops.push_back(0);
      piles.push_back(0);
    }
    tops[static_cast<size_t>(at)] = numbers[i];
    piles[static_cast<size_t>(at)] = static_cast<int>(i);
    if (at > 0) before[i] = piles[static_cast<size_t>(at) - 1];
  }
  std::vector<bool> in(numbers.size(), false);
  for (int i = piles.empty() ? -1 : piles.back(); i >= 0; i = before[static_cast<size_t>(i)])
    in[static_cast<size_t>(i)] = true;
  return in;
}

std::string waits_text(const std::string& waits) { return waits.empty() ? "nothing" : waits; }

OrderDiff diff_of(const std::string& stream, const StreamFacts& first, const StreamFacts& second) {
  OrderDiff diff;
  diff.stream = stream;
  const auto example = [&](std::string text) {
    if (diff.examples.size() < kExamples) diff.examples.push_back(std::move(text));
  };
  const std::vector<std::string> a = numbered(first.ops), b = numbered(second.ops);
  std::map<std::string, int> places;  // indexes in the second list
  for (size_t i = 0; i < b.size(); ++i) places[b[i]] = static_cast<int>(i);
  std::vector<int> order;
  std::vector<size_t> common;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto there = places.find(a[i]);
    if (there == places.end()) {
      diff.only_first++;
      example(fmt::format("only in the first: {}", a[i]));
      continue;
    }
    order.push_back(there->second);
    common.push_back(i);
  }
  const std::set<std::string> of_first(a.begin(), a.end());
  for (const std::string& label : b) {
    if (of_first.contains(label)) continue;
    diff.only_second++;
    example(fmt::format("only in the second: {}", label));
  }
  const std::vector<bool> stays = in_longest_rise(order);
  for (size_t k = 0; k < common.size(); ++k) {
    const size_t i = common[k], j = static_cast<size_t>(order[k]);
    if (!stays[k]) {
      diff.moved++;
      example(fmt::format("{} comes {}", a[i], i > j ? "earlier" : "later"));
    } else if (first.waits[i] != second.waits[j]) {
      diff.other_waits++;
      example(fmt::format("{} waits for {}, and in the second for {}", a[i], waits_text(first.waits[i]),
                          waits_text(second.waits[j])));
    }
  }
  return diff;
}

}  // namespace

std::vector<OrderDiff> order_diffs(const PlanFacts& first, const PlanFacts& second) {
  std::set<std::string> names;
  for (const PlanFacts* facts : {&first, &second})
    for (const auto& [name, stream] : facts->streams) names.insert(name);
  std::vector<OrderDiff> diffs;
  for (const std::string& name : names) {
    const auto of = [&](const PlanFacts& facts) {
      const auto found = facts.streams.find(name);
      return found == facts.streams.end() ? StreamFacts() : found->second;
    };
    diffs.push_back(diff_of(name, of(first), of(second)));
  }
  return diffs;
}

}  // namespace prun
