#include "environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/text.h"

namespace prun {
namespace {

// Beginnings of names that only tests and substitute devices read.
constexpr std::string_view kOfTests[] = {"PRUN_SUBSTITUTE_", "PRUN_TEST_",  "PRUN_FUZZ_",
                                         "PRUN_CUDA_",       "PRUN_UPDATE", "PRUN_HF_PYTHON"};

void add_missing_folders(const char* variable, std::vector<UselessVariable>& found) {
  const char* list = std::getenv(variable);
  for (const std::string& folder : split(list != nullptr ? list : "", ':'))
    if (std::error_code error; !folder.empty() && !std::filesystem::is_directory(folder, error))
      found.push_back(
          {variable, fmt::format("there is no folder {}", folder), "name a folder with plugins, or unset it"});
}

}  // namespace

const std::vector<Variable>& variables() {
  static const std::vector<Variable> all = {
      {"PRUN_SECRET", "the secret that the nodes of a job share, as the first line of --secret-file", true},
      {"PRUN_RENDEZVOUS", "HOST:PORT where node 0 listens, as --rendezvous"},
      {"PRUN_NNODES", "nodes of the job, as --nnodes; with PRUN_NODE_RANK, or Kubernetes' JOB_COMPLETION_INDEX"},
      {"PRUN_NODE_RANK", "which of them this is, as --node-rank"},
      {"PRUN_LOCAL_RANK", "which of the host's processes this is; PRUN_LOCAL_SIZE: how many there are"},
      {"PRUN_JOB", "names the job where its processes meet on one host"},
      {"PRUN_HOST_ID", "identity of this host instead of the kernel's boot id: ranks with equal ones share memory"},
      {"XDG_RUNTIME_DIR", "where processes of one host meet; /tmp/prun-UID where it is not set"},
      {"XDG_CONFIG_HOME",
       "where prun calibrate keeps this machine's figures, as prun/HOST.yaml; ~/.config where it is not set"},
      {"PRUN_PLUGIN_PATH", "folders of transports, with colons between, searched before prun's own"},
      {"PRUN_DEVICE_PATH", "folders of devices, with colons between, searched before prun's own"},
      {"PRUN_COMMAND", "the prun that the Python package runs"},
      {"PRUN_PYTHON", "set by the Python package: the job ends with its process"},
      {"PRUN_LOG", "debug, info, warning or error: the log on standard error; --log-level overrides it"},
      {"CUDA_VISIBLE_DEVICES", "which GPUs --device cuda sees, and in which order"},
      {"OMP_WAIT_POLICY", "how threads of kernels wait; prun sets GOMP_SPINCOUNT=2000 where neither is set"},
      {"GOMP_SPINCOUNT", "how long threads of kernels spin before they sleep", false, "2000"},
      {"TERM", "dumb: no live line"},
      {"NO_COLOR", "set: no colours"},
  };
  return all;
}

std::vector<UselessVariable> useless_variables() {
  std::vector<UselessVariable> found;
  for (const char* variable : {"PRUN_PLUGIN_PATH", "PRUN_DEVICE_PATH"}) add_missing_folders(variable, found);
  constexpr std::string_view kOurs = "PRUN_";       // not part of the names that are compared, as it is common to all
  std::vector<std::string> names = {"LOCAL_SIZE"};  // described with PRUN_LOCAL_RANK
  for (const Variable& variable : variables())
    if (const std::string_view name = variable.name; name.starts_with(kOurs))
      names.emplace_back(name.substr(kOurs.size()));
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view text = *each;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with(kOurs) || std::ranges::find(names, name.substr(kOurs.size())) != names.end()) continue;
    if (std::ranges::any_of(kOfTests, [&](std::string_view begin) { return name.starts_with(begin); })) continue;
    const std::string near = nearest_word(name.substr(kOurs.size()), names);
    found.push_back({name, "set, and prun reads no variable of this name",
                     near.empty() ? fmt::format("unset {}", name) : fmt::format("did you mean {}{}?", kOurs, near)});
  }
  return found;
}

void warn_of_useless_variables() {
  for (const UselessVariable& each : useless_variables())
    fmt::print(stderr, "prun: {}: {} ({})\n", each.name, each.problem, each.fix);
}

}  // namespace prun
