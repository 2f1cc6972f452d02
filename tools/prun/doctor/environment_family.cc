// The variables that prun reads, those that are set, and those that look like ours and are none.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/text.h"
#include "doctor/check.h"
#include "environment.h"

namespace prun::doctor {

Findings environment(const Options& options) {
  Findings found;
  std::vector<std::string> names;
  for (const Variable& variable : variables()) {
    names.emplace_back(variable.name);
    const char* value = std::getenv(variable.name);
    if (value != nullptr && std::string_view(value) == variable.ours) continue;
    if (value != nullptr)
      found.push_back(
          {variable.name, Status::ok, fmt::format("{} ({})", variable.secret ? "set" : value, variable.help)});
    else if (options.json)
      found.push_back({variable.name, Status::absent, variable.help});
  }
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view text = *each;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("PRUN_") || name.starts_with("PRUN_SUBSTITUTE_")) continue;
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const std::string near = nearest_word(name, names);
    found.push_back({name, Status::warn, "set, and prun reads no variable of this name",
                     near.empty() ? fmt::format("unset {}", name) : fmt::format("did you mean {}?", near)});
  }
  return found;
}

}  // namespace prun::doctor
