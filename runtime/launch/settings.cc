// Compares settings in node 0's order; settings that only the other node has come last.
#include <fmt/format.h>

#include <algorithm>

#include "launch/launch.h"

namespace prun {
namespace {

const NodeSetting* find(const std::vector<NodeSetting>& settings, const std::string& name) {
  const auto found =
      std::find_if(settings.begin(), settings.end(), [&](const NodeSetting& s) { return s.name == name; });
  return found == settings.end() ? nullptr : &*found;
}

std::string words(const std::string& name, const NodeSetting* setting) {
  if (setting == nullptr || setting->text.empty()) return "no " + name;
  return fmt::format("{} {}", name, setting->text);
}

}  // namespace

std::string difference(const std::vector<NodeSetting>& ours, const std::vector<NodeSetting>& theirs,
                       const std::string& who) {
  const auto told = [&](const std::string& name, const NodeSetting* our, const NodeSetting* their) {
    return fmt::format("{} has {}, node 0 has {}: give all nodes the same", who, words(name, their), words(name, our));
  };
  for (const NodeSetting& our : ours) {
    const NodeSetting* their = find(theirs, our.name);
    if (their == nullptr || their->compared != our.compared) return told(our.name, &our, their);
  }
  for (const NodeSetting& their : theirs)
    if (find(ours, their.name) == nullptr) return told(their.name, nullptr, &their);
  return "";
}

}  // namespace prun
