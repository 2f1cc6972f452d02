// What `prun calibrate` is asked for, and where its file lies.
#pragma once
#include <string>

namespace prun {

class Definer;
struct Options;

struct CalibrateSettings {
  std::string output;  // "": calibration_path()
  double seconds = 50;
};

void define_calibrate_options(Definer& define, Options& options);

// This machine's: $XDG_CONFIG_HOME/prun/HOST.yaml, else ~/.config/prun/HOST.yaml.
std::string calibration_path();
// The same, or "" where that file does not exist.
std::string existing_calibration();

}  // namespace prun
