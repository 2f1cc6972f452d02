#include "simulate/calibration.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace prun {
std::string calibration_path() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const char* config = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (config != nullptr && *config == '/')
    folder = config;
  else if (home != nullptr && *home != '\0')
    folder = std::filesystem::path(home) / ".config";
  else
    return "";
  return (folder / "prun" / (std::string(host) + ".yaml")).string();
}

std::string existing_calibration() {
  const std::string path = calibration_path();
  std::error_code error;
  return !path.empty() && std::filesystem::is_regular_file(path, error) ? path : "";
}

}  // namespace prun
