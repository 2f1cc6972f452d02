// prun PLAN: builds the job, launches the ranks, shows what they do.
#include <optional>

#include <fmt/format.h>

#include "commands.h"
#include "comm/choose.h"
#include "comm/interfaces.h"
#include "exec/executor.h"
#include "exec/recorder.h"
#include "launch/launch.h"
#include "observer.h"
#include "rank.h"

namespace prun {
int run_command(const Options& given, const Places& places) {
  check_transport_name(given.transport, places.plugin_dirs);  // before anything starts
  check_options(given.transport_options, places.plugin_dirs);
  Options options = given;
  options.network_interface = interface_of_job(given.network_interface, given.nnodes, given.rendezvous);
  Observer observer(options);
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
    return serialize_job(observer.job);
  };
  auto rank_main = [&](const RankStart& start) {
    RecorderHeader* recorder = static_cast<RecorderHeader*>(start.recorder);
    recorder->capacity = capacity;
    recorder->magic = kRecorderMagic;
    return run_rank(start, options, places.plugin_dirs);
  };
  return launch(launch_options, make_job, rank_main, observer);
}

}  // namespace prun
