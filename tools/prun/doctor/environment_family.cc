// The environment variables that prun reads, the ones that are set, and unknown ones that look like prun's.
#include <fmt/format.h>

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
    if (const std::vector<std::string> stray = stray_variables(variable, place->launcher); !stray.empty())
      return {"launcher", Status::warn,
              fmt::format("{}, from {}, which {} did not set", text, join(stray, " and "), place->launcher),
              fmt::format("unset {}, or --launcher none, unless a scheduler sets them", join(stray, " "))};
    return {"launcher", Status::ok, text};
  } catch (const Error& error) {
    return {"launcher", Status::fail, error.message().substr(0, error.message().find('\n')),
            "--launcher NAME takes one of them, --launcher none none", split(environments_table(variable), '\n')};
  }
}

}  // namespace

Findings environment(const DoctorOptions& options) {
  Findings found = {launcher()};
  for (const Variable& variable : variables()) {
    const char* value = std::getenv(variable.name);
    if (value != nullptr && std::string_view(value) == variable.ours) continue;
    if (value != nullptr)
      found.push_back(
          {variable.name, Status::ok, fmt::format("{} ({})", variable.secret ? "set" : value, variable.help)});
    else if (options.json)
      found.push_back({variable.name, Status::absent, variable.help});
  }
  for (const UselessVariable& each : useless_variables())
    found.push_back({each.name, Status::warn, each.problem, each.fix});
  return found;
}

}  // namespace prun::doctor
