#include "watch/run_environment.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "launch/machine.h"

namespace prun {
namespace {

constexpr std::string_view kPrefixes[] = {"PRUN_",      "OMP_",     "GOMP_", "KMP_",      "MKL_",
                                          "ONEDNN_",    "DNNL_",    "CUDA_", "NVIDIA_",   "NCCL_",
                                          "UCX_",       "CUBLAS_",  "FI_",   "SLURM_JOB", "SLURM_STEP",
                                          "MALLOC_",    "TZ",       "LANG",  "LC_",       "LD_LIBRARY_PATH",
                                          "LD_PRELOAD", "NO_COLOR", "TERM"};
constexpr std::string_view kSecret[] = {"SECRET", "TOKEN", "KEY", "PASS", "CREDENTIAL", "AUTH"};

bool is_listed(std::string_view name) {
  const bool known = std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                                 [&](std::string_view prefix) { return name.starts_with(prefix); });
  return known && std::none_of(std::begin(kSecret), std::end(kSecret),
                               [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

}  // namespace

std::string processor_name() {
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(": ") + 2));
  return "";
}

std::string run_environment_json() {
  nlohmann::ordered_json found = {{"prun", PRUN_VERSION}, {"build", PRUN_BUILD_TYPE}};
  utsname system{};
  if (uname(&system) == 0) {
    found["host"] = system.nodename;
    found["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  }
  found["processor"] = processor_name();
  for (const MachineFact& fact : machine_facts()) found["machine"][fact.name] = fact.value;
  found["variables"] = nlohmann::ordered_json::object();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && is_listed(text.substr(0, equals)))
      found["variables"][std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  return found.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace prun
