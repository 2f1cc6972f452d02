#include "job/heterogeneous_devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace prun {
namespace {

// Returns "rank 2", or "ranks 0 to 3 and 6".
std::string ranks_with(const std::vector<std::string>& descriptions, const std::string& wanted) {
  std::vector<std::string> runs;
  size_t count = 0;
  for (size_t first = 0, last; first < descriptions.size(); first = last + 1) {
    last = first;
    if (descriptions[first] != wanted) continue;
    while (last + 1 < descriptions.size() && descriptions[last + 1] == wanted) ++last;
    count += last - first + 1;
    runs.push_back(first == last ? fmt::format("{}", first)
                                 : fmt::format("{} {} {}", first, last == first + 1 ? "and" : "to", last));
  }
  return (count == 1 ? "rank " : "ranks ") + join(runs, ", ");
}

}  // namespace

std::string describe_device(const DeviceReport& report, int index) {
  const FoundDevice* found = report.find(index);
  if (found == nullptr) return "";
  return fmt::format("{} ({}) with {}", found->info.name, found->info.architecture, report.probe.libraries);
}

std::string heterogeneity_warning(const std::vector<std::string>& descriptions) {
  std::vector<std::string> kinds, parts;
  for (const std::string& one : descriptions)
    if (std::find(kinds.begin(), kinds.end(), one) == kinds.end()) kinds.push_back(one);
  if (kinds.size() < 2) return "";
  for (const std::string& kind : kinds) parts.push_back(fmt::format("{} on {}", ranks_with(descriptions, kind), kind));
  return fmt::format(
      "not all ranks compute alike: {}; what several of them compute may differ in its last bits, losses from those of "
      "a run on one kind, and every step takes as long as on the slowest",
      join(parts, ", "));
}

}  // namespace prun
