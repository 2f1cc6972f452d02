#include "base/machine_id.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

namespace prun {

bool machine_id_is_given() {
  const char* given = std::getenv("PRUN_HOST_ID");
  return given != nullptr && *given != '\0';
}

std::string machine_id() {
  std::string id;
  if (machine_id_is_given()) {
    id = std::getenv("PRUN_HOST_ID");
    std::replace_if(
        id.begin(), id.end(), [](unsigned char c) { return std::isspace(c) != 0; }, '_');
    return id;
  }
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

}  // namespace prun
