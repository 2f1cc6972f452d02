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
  launch.command = fmt::format("{} --nproc {}", shell_word(spec.plan), launch.nproc);
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
