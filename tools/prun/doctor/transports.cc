// Tests every transport between two ranks of this host: they join, connect and communicate.
#include <fmt/format.h>

#include "base/text.h"
#include "comm/transport/plugin.h"
#include "doctor/check.h"
#include "job/launcher_bootstrap.h"
#include "job/rank.h"

namespace prun::doctor {
namespace {

void talk(const RankStart& start, const PluginFile& file, const DoctorOptions& options) {
  LauncherBootstrap bootstrap(*start.launcher, nullptr);
  WorldOptions world_options;
  static_cast<RankPlace&>(world_options) = start;
  world_options.transport = file.name;
  world_options.plugin_dirs = options.job.world.plugin_dirs;
  world_options.deadline_s = 15;
  const std::unique_ptr<World> world = World::open(world_options, bootstrap);
  char* buffer = static_cast<char*>(world->allocate(kPairBytes));
  world->connect();
  Communicator& group = world->communicator({0, 1}, 0);
  const double latency = pair_latency(group, 0, 1, buffer), bandwidth = pair_bandwidth(group, 0, 1, buffer);
  if (start.rank == 0) {
    report(*start.launcher, latency_finding(file.name, "", latency));
    report(*start.launcher, bandwidth_finding(file.name, "", bandwidth));
  }
  group.run(CollCall{});  // no rank leaves while the other still waits for it
}

}  // namespace

Findings transports(const DoctorOptions& options) {
  Findings found;
  for (const PluginFile& file : find_plugins(options.job.world.plugin_dirs)) {
    if (file.cuda_memory && !file.host_memory) {
      found.push_back({file.name, Status::absent, "for the memory of devices: --device tells about them"});
      continue;
    }
    LaunchOptions launch;
    launch.nproc = 2;
    launch.join_timeout_s = 15;
    launch.recorder_bytes = 4096;
    launch.command = "doctor";
    const JobOutcome outcome = run_job(launch, file.name, [&](const RankStart& start) {
      return be_rank(start, [&](std::string& where) {
        where = "joining";
        talk(start, file, options);
      });
    });
    found.insert(found.end(), outcome.reported.begin(), outcome.reported.end());
    if (outcome.code == 0) continue;
    found.push_back({file.name, file.automatic ? Status::fail : Status::warn, outcome.failure,
                     fmt::format("prun conform {} says which part of it fails; --transport takes another", file.name)});
  }
  return found;
}

}  // namespace prun::doctor
