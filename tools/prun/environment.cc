#include "environment.h"

namespace prun {

const std::vector<Variable>& variables() {
  static const std::vector<Variable> all = {
      {"PRUN_SECRET", "the secret that the nodes of a job share, as the first line of --secret-file", true},
      {"PRUN_PLUGIN_PATH", "folders of transports, with colons between, searched before prun's own"},
      {"PRUN_DEVICE_PATH", "folders of devices, with colons between, searched before prun's own"},
      {"PRUN_LOG", "debug, info, warning or error: the log on standard error; --log-level goes before it"},
      {"SPDLOG_LEVEL", "the same, of the library that writes the log"},
      {"CUDA_VISIBLE_DEVICES", "which GPUs --device cuda sees, and in which order"},
      {"OMP_WAIT_POLICY", "how threads of kernels wait; prun sets GOMP_SPINCOUNT=2000 where neither is set"},
      {"GOMP_SPINCOUNT", "how long threads of kernels spin before they sleep", false, "2000"},
      {"TERM", "dumb: no live line"},
      {"NO_COLOR", "set: no colours"},
  };
  return all;
}

}  // namespace prun
