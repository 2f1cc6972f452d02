// --nnodes, --node-rank, --rendezvous: one rank on each host. The ranks compare settings that must be equal; then every
// pair communicates over every transport that reaches other hosts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "comm/transport/interfaces.h"
#include "comm/transport/plugin.h"
#include "doctor/check.h"
#include "job/launcher_bootstrap.h"
#include "job/rank.h"
#include "job/secret.h"
#include "launch/await_name.h"
#include "version.h"

namespace prun::doctor {
namespace {

constexpr double kMostSkew_s = 0.1;

std::string node_names(const std::vector<std::string>& hosts) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < hosts.size(); ++i) parts.push_back(fmt::format("{} ({})", i, hosts[i]));
  return join(parts, ", ");
}

std::string mtu_text(const std::string& interface) {
  if (interface.empty()) return "loopback";
  const int64_t mtu = mtu_of(interface);
  return mtu < 0 ? "unknown" : std::to_string(mtu);
}

// Returns a finding that lists the nodes' values, "node 0: x; node 1: y", if they differ.
Finding compared(const std::string& name, const std::vector<std::string>& values, Status otherwise,
                 const std::string& fix) {
  const bool alike = std::all_of(values.begin(), values.end(), [&](const auto& value) { return value == values[0]; });
  if (alike) return {name, Status::ok, values[0] + " on all"};
  std::vector<std::string> parts;
  for (size_t i = 0; i < values.size(); ++i) parts.push_back(fmt::format("node {}: {}", i, values[i]));
  return {name, otherwise, join(parts, "; "), fix};
}

void compare(const RankStart& start, const DoctorOptions& options) {
  LauncherClient& launcher = *start.launcher;
  const std::vector<std::string> hosts = launcher.all_gather(host_name()),
                                 versions = launcher.all_gather(version_text()),
                                 mtus = launcher.all_gather(mtu_text(options.job.world.network_interface));
  if (start.rank != 0) return;
  report(launcher, {"nodes", Status::ok, node_names(hosts)});
  report(launcher,
         compared("version", versions, Status::warn, "the same prun on every node: their programs may differ"));
  report(launcher, compared("MTU", mtus, Status::warn,
                            "the same MTU on the interfaces of all nodes, and on the switches between them"));
}

// Returns the transports that every node has: those of auto, or --transport.
std::vector<std::string> common_transports(const RankStart& start, const DoctorOptions& options) {
  std::vector<std::string> own;
  for (const PluginFile& file : find_plugins(options.job.world.plugin_dirs))
    if ((options.job.world.transport == "auto" ? file.automatic && file.host_memory && !file.local_only
                                               : file.name == options.job.world.transport) &&
        (file.encrypts || !options.job.world.encrypt))
      own.push_back(file.name);
  std::vector<std::string> common = own;
  for (const std::string& list : start.launcher->all_gather(join(own, ","))) {
    const std::vector<std::string> theirs = split(list, ',');
    std::erase_if(common,
                  [&](const auto& name) { return std::find(theirs.begin(), theirs.end(), name) == theirs.end(); });
  }
  return common;
}

void tell_clock(LauncherClient& launcher, const std::string& where, const ClockOffset& offset) {
  Finding found{fmt::format("clock, {}", where), Status::ok,
                fmt::format("{:+.1f} ms, known to {:.1f} ms", offset.seconds * 1e3, offset.error * 1e3)};
  found.number = static_cast<int64_t>(offset.seconds * 1e9);
  if (std::abs(offset.seconds) > kMostSkew_s + offset.error)
    found.status = Status::warn, found.fix = "a time server for both: chrony or systemd-timesyncd";
  report(launcher, found);
}

void talk_over(const RankStart& start, const std::string& transport, bool clocks, const DoctorOptions& options) {
  LauncherBootstrap bootstrap(*start.launcher, nullptr);
  WorldOptions world_options;
  static_cast<RankPlace&>(world_options) = start;
  world_options.job_id += transport;
  world_options.transport = transport;
  world_options.plugin_dirs = options.job.world.plugin_dirs;
  world_options.network_interface = options.job.world.network_interface;
  world_options.network_address = options.job.world.network_address;
  world_options.encrypt = options.job.world.encrypt;
  world_options.deadline_s = 20;
  const std::unique_ptr<World> world = World::open(world_options, bootstrap);
  char* buffer = static_cast<char*>(world->allocate(kPairBytes));
  world->connect();
  std::vector<int> all(static_cast<size_t>(start.ranks));
  std::iota(all.begin(), all.end(), 0);
  Communicator& group = world->communicator(all, 0);
  for (int one = 0; one < start.ranks; ++one)
    for (int other = one + 1; other < start.ranks; ++other) {
      if (start.rank == one || start.rank == other) {
        const std::string where = fmt::format("node {} to node {}", one, other);
        const bool tells = start.rank == one;
        if (clocks && one == 0) {
          const ClockOffset offset = clock_offset(group, one, other, buffer);
          if (tells) tell_clock(*start.launcher, where, offset);
        }
        const double latency = pair_latency(group, one, other, buffer);
        if (tells) report(*start.launcher, latency_finding(transport, where, latency));
        const double bandwidth = pair_bandwidth(group, one, other, buffer);
        if (tells) report(*start.launcher, bandwidth_finding(transport, where, bandwidth));
      }
      group.run(CollCall{});  // one pair at a time
    }
}

}  // namespace

Findings hosts(const DoctorOptions& given) {
  if (given.job.launch.nnodes < 2) return {};
  DoctorOptions options = given;
  options.job.launch.nproc = 1;
  options.job.launch.recorder_bytes = 4096;
  options.job.launch.command = "doctor";
  options.job.launch.secret = read_secret(options.job.launch.secret_file);
  try {
    await_name(options.job.launch);
  } catch (const Error& error) {
    if (error.code() != Exit::join) throw;
    return {{"nodes", Status::fail, error.what(), "an address in place of the name, or a line in /etc/hosts"}};
  }
  settle_network(options.job.world, options.job.launch.nnodes, options.job.launch.rendezvous);
  const JobOutcome outcome = run_job(options.job.launch, "doctor", [&](const RankStart& start) {
    return be_rank(start, [&](std::string& where) {
      where = "joining";
      compare(start, options);
      bool clocks = true;
      for (const std::string& transport : common_transports(start, options)) {
        where = "over " + transport;
        talk_over(start, transport, clocks, options);
        clocks = false;
      }
    });
  });
  Findings found = outcome.reported;
  if (outcome.code != 0) {
    const bool small_only = !found.empty() && found.back().name.find("latency") != std::string::npos;
    found.push_back({"nodes", Status::fail, outcome.failure,
                     small_only ? "small messages pass and large ones do not: an MTU on the way is too small"
                                : "prun plugins --explain shows the interfaces; a firewall must let the nodes talk"});
  } else if (options.job.launch.node_rank != 0) {
    found.push_back({"nodes", Status::ok, "taken part; node 0 has the report"});
  }
  return found;
}

}  // namespace prun::doctor
