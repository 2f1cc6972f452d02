#include "base/machine_id.h"

#include <cstdlib>
#include <fstream>

namespace prun {

bool machine_id_is_given() {
  const char* given = std::getenv("PRUN_HOST_ID");
  return given != nullptr && *given != '\0';
}

std::string machine_id() {
  if (machine_id_is_given()) return std::getenv("PRUN_HOST_ID");
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

}  // namespace prun
