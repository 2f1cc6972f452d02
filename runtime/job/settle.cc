#include "job/settle.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "comm/transport/interfaces.h"
#include "comm/transport/transport_choice.h"
#include "exec/recorder.h"
#include "job/node_settings.h"
#include "job/secret.h"
#include "kernels/devices.h"
#include "launch/await_name.h"
#include "watch/observer.h"

namespace prun {

void settle_job(JobSpec& spec) {
  LaunchOptions& launch = spec.launch;
  WorldOptions& world = spec.world;
  check_transport_name(world.transport, world.plugin_dirs);
  check_options(world.transport_options, world.plugin_dirs);
  check_encryption(world, launch.nnodes);
  launch.grace_s = spec.checkpoint.folder.empty() ? 0 : spec.checkpoint.grace_s;
  launch.secret = read_secret(launch.secret_file);
  launch.settings = node_settings(spec);
  if (launch.nnodes > 1) await_name(launch);
  settle_network(world, launch.nnodes, launch.rendezvous);
  launch.recorder_bytes = recorder_bytes(Observer::recorder_capacity(spec.watch));
  spec.binding = Binding(spec.bind, launch.nproc);
  launch.capture_output = true;
  launch.mirror_all = !spec.watch.trace.empty();
  launch.command = command_of(spec);
}

void settle_alone(JobSpec& spec, const std::string& command) {
  LaunchOptions& launch = spec.launch;
  check_transport_name(spec.world.transport, spec.world.plugin_dirs);
  spec.world.network_interface = interface_of_job("", 1, "");
  launch.recorder_bytes = recorder_bytes(Observer::recorder_capacity(spec.watch));
  launch.command = command_of(spec);
  launch.command.run = command + " " + launch.command.run;
  spec.binding = Binding(spec.bind, launch.nproc);
  spec.check_replicas = 0;
  describe_to_views(spec);
}

JobCommand command_of(const JobSpec& spec) {
  const LaunchOptions& launch = spec.launch;
  std::string both = fmt::format("{} --nproc {}", shell_word(spec.plan), launch.nproc), run;
  const auto add = [](std::string& to, const char* option, const std::string& value) {
    if (!value.empty()) to += fmt::format(" {} {}", option, shell_word(value));
  };
  for (const auto& [name, value] : spec.settings) add(both, "--set", fmt::format("{}={}", name, value));
  if (spec.first_device > 0)
    add(both, "--device", fmt::format("{}:{}", spec.device, spec.first_device));
  else if (spec.device != JobSpec().device)
    add(both, "--device", spec.device);
  add(both, "--device-options", spec.device_options);
  if (spec.ranks_per_device > 1) add(run, "--ranks-per-device", std::to_string(spec.ranks_per_device));
  if (spec.world.transport != WorldOptions().transport) add(run, "--transport", spec.world.transport);
  add(run, "--transport-options", spec.world.transport_options);
  const bool by_launcher = launch.host_ranks > 0;  // which starts all nodes again
  if (launch.nnodes > 1) add(both, "--nnodes", std::to_string(launch.nnodes));
  if (launch.nnodes > 1 && !by_launcher) {
    add(run, "--node-rank", std::to_string(launch.node_rank));
    add(run, "--rendezvous", launch.rendezvous);
  }
  return {both + run, both};
}

void describe_to_views(JobSpec& spec) {
  WatchSpec& watch = spec.watch;
  watch.plan = spec.plan;
  watch.settings = spec.settings;
  watch.command = spec.launch.command;
  watch.device = spec.device;
  watch.runs_graphs = open_device(spec.device, spec.device_options)->queue() != nullptr;
  watch.binding = spec.binding.text();
  watch.nodes = spec.launch.nnodes;
  watch.node = spec.launch.node_rank;
  watch.nproc = spec.launch.nproc;
  watch.deadline_s = spec.world.deadline_s;
  watch.explains_non_finite = spec.check_finite || !spec.non_finite.empty();
  watch.names_skipped = spec.non_finite == "skip";
  watch.checkpoints = spec.checkpoint.folder;
  watch.resumed_from = spec.checkpoint.resume;
  watch.first_step = spec.checkpoint.begin.step;
}

}  // namespace prun
