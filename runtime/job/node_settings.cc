// The plan is compared by content, because its path may differ between hosts.
#include "job/node_settings.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "launch/secret.h"
#include "script/script.h"

namespace prun {
namespace {

NodeSetting the_plan(const JobSpec& spec) {
  std::string path;
  try {
    path = find_plan(spec.plan, spec.lua_dir);
  } catch (const Error&) {  // missing
  }
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (path.empty() || !file) return {"plan", spec.plan + " (there is no such file)", "missing"};
  const std::string hash = hex(sha256(text.str()));
  return {"plan", fmt::format("{} ({})", spec.plan, hash.substr(0, 8)), hash};
}

}  // namespace

std::vector<NodeSetting> node_settings(const JobSpec& spec) {
  std::vector<NodeSetting> all = {{"prun", PRUN_VERSION, PRUN_VERSION}};
  const auto add = [&](const char* name, const std::string& text) { all.push_back({name, text, text}); };
  if (!spec.plan.empty()) all.push_back(the_plan(spec));
  for (const auto& [name, value] : spec.settings) add(("--set " + name).c_str(), "= " + value);
  add("--device", spec.device);
  add("--device-options", spec.device_options);
  add("--kernels", spec.kernels.asked);
  add("--ranks-per-device", std::to_string(spec.ranks_per_device));
  add("--transport", spec.world.transport);
  add("--transport-options", spec.world.transport_options);
  add("--algorithm", spec.world.algorithm);
  add("--timeout", fmt::format("{:g}", spec.world.deadline_s));
  add("--check-finite", spec.check_finite ? "(given)" : "");
  add("--non-finite", spec.non_finite);
  add("--every-microbatch", spec.every_microbatch ? "(given)" : "");
  add("--pad-vocabulary", spec.pad_vocabulary > 0 ? std::to_string(spec.pad_vocabulary) : "");
  add("--check-replicas", std::to_string(spec.check_replicas));
  add("--checkpoint-every", spec.checkpoint.every > 0 ? std::to_string(spec.checkpoint.every) : "");
  add("--checkpoint-strict", spec.checkpoint.strict ? "(given)" : "");
  add("--checkpoint", spec.checkpoint.folder.empty() ? "" : "(given)");
  return all;
}

}  // namespace prun
