// Names of roles and phases.
#include "ir/program.h"

#include <array>

namespace prun {

std::string_view role_name(Role role) {
  static constexpr std::array<std::string_view, kRoles> kNames = {"param", "grad", "optimizer", "gathered",
                                                                  "reduce", "activation", "data", "workspace"};
  return kNames[static_cast<size_t>(role)];
}

std::string_view phase_name(Phase phase) {
  static constexpr std::array<std::string_view, 6> kNames = {"init", "data", "forward", "backward", "step", "program"};
  return kNames[static_cast<size_t>(phase)];
}

int64_t Body::op_count() const {
  int64_t n = 0;
  for (const Stream& stream : streams) n += static_cast<int64_t>(stream.ops.size());
  return n;
}

}  // namespace prun
