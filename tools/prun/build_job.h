// From a plan's path to a verified job: script, plan, compile, verify, in this order.
#pragma once
#include <string>

#include "device/device.h"
#include "ir/plan.h"
#include "ir/program.h"
#include "options.h"
#include "script/script.h"

namespace prun {

struct Places {
  std::string program;  // this executable
  std::string lua_dir;  // the DSL
  std::vector<std::string> plugin_dirs;
};
// Throws usage_error when lua/ is not beside the program.
Places find_places();

Job build_job(const Options& options, const Places& places, int ranks);
// Bytes of memory that the ranks of this host may use: available memory and the cgroup's limit.
int64_t memory_limit();
// What a plan says of itself: description and arguments, without being compiled.
ScriptResult describe_plan(const Options& options, const Places& places);
void print_plan_help(const Options& options, const Places& places);

}  // namespace prun
