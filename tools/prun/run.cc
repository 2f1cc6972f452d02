// prun PLAN: builds the job, launches the ranks, shows what they do.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "comm/transport/interfaces.h"
#include "comm/transport/transport_choice.h"
#include "commands.h"
#include "device_check.h"
#include "exec/job_run.h"
#include "exec/recorder.h"
#include "launch/launch.h"
#include "observer.h"
#include "rank.h"

namespace prun {
namespace {

// The most that a rank needs on its device when the plan runs with so many ranks on each host; none where it cannot.
std::optional<int64_t> needed_with(Options options, const Places& places, int nproc) {
  options.nproc = nproc;
  try {
    int64_t largest = 0;
    for (const Program& program : build_job(options, places, nproc * options.nnodes).classes)
      largest = std::max(largest, needed_on_device(program));
    return largest;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

int run_command(const Options& given, const Places& places) {
  Options options = given;
  const DeviceReport devices = check_devices(options);  // before anything starts
  if (options.ranks_per_device > 1 && !devices.devices.empty()) options.transport = transport_of_sharing_ranks(options);
  check_transport_name(options.transport, places.plugin_dirs);
  check_options(options.transport_options, places.plugin_dirs);
  options.network_interface = interface_of_job(given.network_interface, given.nnodes, given.rendezvous);
  Observer observer(options);
  observer.peak_flops = peak_flops(devices) * options.nnodes;  // other nodes have what this one has
  LaunchOptions launch_options;
  launch_options.nproc = options.nproc;
  launch_options.nnodes = options.nnodes;
  launch_options.node_rank = options.node_rank;
  launch_options.rendezvous = options.rendezvous;
  launch_options.secret = read_secret(options.secret_file);
  launch_options.join_timeout_s = options.timeout_s;
  uint64_t capacity = Observer::recorder_capacity(options);
  launch_options.recorder_bytes = recorder_bytes(capacity);
  launch_options.command = fmt::format("{} --nproc {}", options.plan, options.nproc);
  auto make_job = [&](int ranks) {
    observer.job = build_job(options, places, ranks);
    check_device_memory(options, observer.job, devices, [&](int nproc) { return needed_with(options, places, nproc); });
    return serialize_job(observer.job);
  };
  auto rank_main = [&](const RankStart& start) {
    RecorderHeader* recorder = static_cast<RecorderHeader*>(start.recorder);
    recorder->capacity = capacity;
    recorder->magic = kRecorderMagic;
    return run_rank(start, options, devices, places.plugin_dirs);
  };
  return launch(launch_options, make_job, rank_main, observer);
}

}  // namespace prun
