#include "calibrate/settings.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/cores.h"
#include "definer.h"
#include "options.h"

namespace prun {

void define_calibrate_options(Definer& define, Options& options) {
  CalibrateSettings& s = options.calibrate;
  options.launch.nproc = usable_cores();
  define.whole(kCalibrate, "--nproc", "N", options.launch.nproc, 1,
               "ranks that share this machine in the runs to predict (default: as many as cores)");
  define.text(kCalibrate, "--output", "FILE", s.output,
              "the cluster file to write (default: ~/.config/prun/HOST.yaml, which prun sim and runs look for)");
  define.parsed(
      kCalibrate, "--seconds", "S", [&s](const std::string& text) { s.seconds = whole_number("--seconds", text, 5); },
      "about how long it may take, from 5 on (default 50); less is less exact");
}

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
