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

}  // namespace prun
