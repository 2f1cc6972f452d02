// The environment variables that prun reads, the ones that are set, and unknown ones that look like prun's.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "doctor/check.h"
#include "environment.h"
#include "launch/environments.h"

namespace prun::doctor {
namespace {

// Reports the foreign launcher of this process, if any: mpirun, srun, torchrun, Kubernetes.
Finding launcher() {
  const auto variable = [](const char* name) -> const char* { return std::getenv(name); };
  try {
    const std::optional<ForeignPlace> place = read_environments(variable, "");
    if (!place) return {"launcher", Status::ok, "none but prun itself"};
    const std::string text = fmt::format("{}: process {} of {}", place->launcher, place->index, place->count);
    if (place->launcher == "torchrun" && variable("TORCHELASTIC_RUN_ID") == nullptr)
      return {"launcher", Status::warn, text + ", from RANK and WORLD_SIZE, which torchrun did not set",
              "unset RANK WORLD_SIZE, or --launcher none, unless a scheduler sets them"};
    return {"launcher", Status::ok, text};
  } catch (const Error& error) {
    return {"launcher", Status::fail, error.message().substr(0, error.message().find('\n')),
            "--launcher NAME takes one of them, --launcher none none", split(environments_table(variable), '\n')};
  }
}

}  // namespace

Findings environment(const DoctorOptions& options) {
  Findings found = {launcher()};
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
