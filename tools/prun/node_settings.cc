// The plan is compared by its bytes: its folder may lie elsewhere on another host.
#include "node_settings.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "launch/secret.h"
#include "script/script.h"

namespace prun {
namespace {

NodeSetting the_plan(const Options& options) {
  std::string path;
  try {
    path = find_plan(options.plan, options.lua_dir);
  } catch (const Error&) {  // it is not there
  }
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (path.empty() || !file) return {"plan", options.plan + " (there is no such file)", "missing"};
  const std::string hash = hex(sha256(text.str()));
  return {"plan", fmt::format("{} ({})", options.plan, hash.substr(0, 8)), hash};
}

}  // namespace

std::vector<NodeSetting> node_settings(const Options& options) {
  std::vector<NodeSetting> all = {{"prun", PRUN_VERSION, PRUN_VERSION}};
  const auto add = [&](const char* name, const std::string& text) { all.push_back({name, text, text}); };
  if (!options.plan.empty()) all.push_back(the_plan(options));
  for (const auto& [name, value] : options.settings) add(("--set " + name).c_str(), "= " + value);
  add("--device", options.device);
  add("--device-options", options.device_options);
  add("--kernels", options.kernels.asked);
  add("--ranks-per-device", std::to_string(options.ranks_per_device));
  add("--transport", options.world.transport);
  add("--transport-options", options.world.transport_options);
  add("--algorithm", options.world.algorithm);
  add("--timeout", fmt::format("{:g}", options.world.deadline_s));
  add("--check-finite", options.check_finite ? "(given)" : "");
  add("--non-finite", options.non_finite);
  add("--every-microbatch", options.every_microbatch ? "(given)" : "");
  add("--pad-vocabulary", options.pad_vocabulary > 0 ? std::to_string(options.pad_vocabulary) : "");
  add("--check-replicas", std::to_string(options.check_replicas));
  add("--checkpoint-every", options.checkpoint.every > 0 ? std::to_string(options.checkpoint.every) : "");
  add("--checkpoint-strict", options.checkpoint.strict ? "(given)" : "");
  add("--checkpoint", options.checkpoint.folder.empty() ? "" : "(given)");
  return all;
}

}  // namespace prun
