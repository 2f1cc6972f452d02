#include "calibrate/settings.h"

#include "base/cores.h"
#include "definer.h"
#include "options.h"

namespace prun {

void define_calibrate_options(Definer& define, Options& options) {
  CalibrateSettings& s = options.calibrate;
  options.job.launch.nproc = usable_cores();
  define.whole(kCalibrate, "--nproc", "N", options.job.launch.nproc, 1,
               "ranks that share this machine in the runs to predict (default: as many as cores)");
  define.text(kCalibrate, "--output", "FILE", s.output,
              "the cluster file to write (default: ~/.config/prun/HOST.yaml, which prun sim and runs look for)");
  define.parsed(
      kCalibrate, "--seconds", "S", [&s](const std::string& text) { s.seconds = whole_number("--seconds", text, 5); },
      "about how long it may take, from 5 on (default 50); less is less exact");
}

}  // namespace prun
