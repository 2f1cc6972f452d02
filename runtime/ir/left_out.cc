#include "ir/left_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace prun {

int64_t LeftOut::sample_of(int64_t index) const {
  int64_t sample = index;
  for (size_t i = 0; i + 1 < runs.size() && runs[i] <= sample; i += 2) sample += runs[i + 1] - runs[i];
  return sample;
}

void LeftOut::add(int64_t begin, int64_t end) {
  std::vector<std::pair<int64_t, int64_t>> all = {{begin, end}};
  for (size_t i = 0; i + 1 < runs.size(); i += 2) all.emplace_back(runs[i], runs[i + 1]);
  std::sort(all.begin(), all.end());
  runs.clear();
  for (const auto& [from, to] : all) {
    if (!runs.empty() && from <= runs.back())
      runs.back() = std::max(runs.back(), to);
    else
      runs.insert(runs.end(), {from, to});
  }
}

bool LeftOut::valid() const {
  constexpr int64_t kMost = int64_t{1} << 53;  // below it, sums do not overflow
  return runs.size() % 2 == 0 && std::is_sorted(runs.begin(), runs.end(), std::less_equal<>()) &&
         (runs.empty() || (runs.front() >= 0 && runs.back() <= kMost));
}

std::string run_text(std::string_view one, std::string_view several, int64_t begin, int64_t end) {
  return end - begin == 1 ? fmt::format("{} {}", one, end) : fmt::format("{} {}-{}", several, begin + 1, end);
}

}  // namespace prun
