// The spine: script -> plan -> job -> verified job. An installed prun finds lua/ in ../share/prun, one in a build
// folder at the top of the source tree.
#include "build_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "comm/comm.h"
#include "compile/compile.h"
#include "cores.h"
#include "ir/plan_json.h"
#include "script/script.h"
#include "verify/verify.h"

namespace prun {
namespace fs = std::filesystem;

Places find_places() {
  Places places;
  fs::path program = fs::read_symlink("/proc/self/exe");
  places.program = program.string();
  for (const char* candidate : {"../share/prun/lua", "../../../lua"}) {
    fs::path lua = program.parent_path() / candidate;
    if (fs::exists(lua / "prun" / "init.lua")) {
      places.lua_dir = fs::canonical(lua).string();
      break;
    }
  }
  if (places.lua_dir.empty())
    throw usage_error(
        fmt::format("{} has no lua/ folder beside it: it was moved without its share/prun", places.program));
  places.plugin_dirs = plugin_directories(places.program);
  return places;
}

// A plan of ours is found from any folder: plans/ lies beside lua/.
static std::string find_plan(const std::string& typed, const Places& places) {
  fs::path ours = fs::path(places.lua_dir).parent_path() / typed;
  return !fs::exists(typed) && fs::path(typed).is_relative() && fs::is_regular_file(ours) ? ours.string() : typed;
}

int64_t memory_limit() {
  int64_t limit = 0;
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  for (std::string unit; meminfo >> key >> kilobytes; std::getline(meminfo, unit))
    if (key == "MemAvailable:") limit = kilobytes * 1024;
  std::ifstream cgroup("/sys/fs/cgroup/memory.max");
  int64_t most = 0;
  if (cgroup >> most) limit = limit == 0 ? most : std::min(limit, most);
  return limit;
}

namespace {

// Throws for the first op that the device has no kernel for, and names the device that has one.
void require_supported(const Job& job, const Device& device) {
  for (const Program& program : job.classes)
    for (const Body* body : program.bodies())
      for (const Stream& stream : body->streams)
        for (const Op& op : stream.ops) {
          if (op.def->op_class != OpClass::compute || device.supports(op, program)) continue;
          int tensor = op.writes.empty() ? op.reads.at(0) : op.writes[0];
          std::string message = fmt::format("the device '{}' cannot run {} on {}", device.name(), op.def->name,
                                            dtype_name(program.tensors[static_cast<size_t>(tensor)].dtype));
          for (const char* name : {"cpu", "reference"})
            if (open_device(name)->supports(op, program)) message += fmt::format("; --device {} can", name);
          throw plan_error(std::move(message), op.site);
        }
}

}  // namespace

Job build_job(const Options& options, const Places& places, int ranks) {
  ScriptOptions script;
  script.plan_path = find_plan(options.plan, places);
  script.lua_dir = places.lua_dir;
  script.world = ranks;
  script.settings = options.settings;
  Plan plan = read_plan(run_script(script).plan_cbor);

  std::unique_ptr<Device> device = open_device(options.device);
  CompileOptions compile_options;
  compile_options.device = options.device;
  compile_options.check_finite = options.check_finite;
  compile_options.workspace_bytes = [&](const Program& program, const Op& op) {
    return device->workspace_bytes(program, op, threads_per_rank(options.nproc));
  };
  compile_options.fuses = [&](std::string_view kind) { return device->fuses(kind); };
  Job job = compile(plan, compile_options);
  require_supported(job, *device);
  // Only a run takes this host's memory, where its device has none of its own; check and dump may be about any cluster.
  const bool runs =
      options.command == "run" && (device->table() == nullptr || device->table()->mem_kind == PRUN_MEM_HOST);
  require_valid(job, runs ? memory_limit() / options.nproc : 0, options.nproc);
  return job;
}

ScriptResult describe_plan(const Options& options, const Places& places) {
  ScriptOptions script;
  script.plan_path = find_plan(options.plan, places);
  script.lua_dir = places.lua_dir;
  script.world = options.nproc * options.nnodes;
  script.settings = options.settings;
  script.help = true;
  return run_script(script);
}

void print_plan_help(const Options& options, const Places& places) {
  ScriptResult result = describe_plan(options, places);
  if (!result.description.empty()) fmt::print("{}\n\n", result.description);
  fmt::print("arguments of {} (--set name=value):\n", options.plan);
  for (const PlanArgument& argument : result.arguments) {
    const std::string left = fmt::format("  {}={}", argument.name, argument.initial);
    fmt::print("{}\n", argument.help.empty() ? left : fmt::format("{:<28} {}", left, argument.help));
  }
  fmt::print("\n{}", usage());
}

}  // namespace prun
