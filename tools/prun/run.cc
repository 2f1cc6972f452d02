// prun PLAN: devices, nodes, plan, capacity, launch; an Observer watches the ranks and tells what they do.
#include <fmt/format.h>

#include <csignal>

#include "algorithm_choice.h"
#include "build_job.h"
#include "checkpoint/history.h"
#include "checkpoint_owner.h"
#include "comm/transport/interfaces.h"
#include "comm/transport/transport_choice.h"
#include "commands.h"
#include "data_course.h"
#include "device_check.h"
#include "exec/chaos.h"
#include "exec/job_run.h"
#include "exec/recorder.h"
#include "inventory.h"
#include "job_secret.h"
#include "launch/launch.h"
#include "node_settings.h"
#include "non_finite.h"
#include "observer.h"
#include "proof.h"
#include "rank.h"
#include "replicas.h"
#include "restart.h"

namespace prun {
namespace {

// Completes what the command line leaves open, and throws for what can be wrong before anything starts.
void settle_options(Options& options, const DeviceReport& devices) {
  LaunchOptions& launch = options.launch;
  WorldOptions& world = options.world;
  check_nccl_share(options);
  if (options.ranks_per_device > 1 && !devices.devices.empty()) world.transport = transport_of_sharing_ranks(options);
  check_transport_name(world.transport, world.plugin_dirs);
  check_options(world.transport_options, world.plugin_dirs);
  check_encryption(world, launch.nnodes);
  world.network_interface = interface_of_job(world.network_interface, launch.nnodes, launch.rendezvous);
  launch.grace_s = options.checkpoint.folder.empty() ? 0 : options.checkpoint.grace_s;
  launch.secret = read_secret(launch.secret_file);
  if (launch.node_rank == 0 && world.algorithm.empty())
    world.algorithm_costs = calibrated_algorithm_costs(world.transport_options);
  launch.settings = node_settings(options);
  launch.recorder_bytes = recorder_bytes(Observer::recorder_capacity(options));
  options.binding = Binding(options.bind, launch.nproc);
  launch.capture_output = true;
  launch.mirror_all = !options.trace.empty();
  launch.command = fmt::format("{} --nproc {}", options.plan, launch.nproc);
}

// Returns whether checkpoints store the data's identity, or nodes compare it.
bool identifies_data(const Options& options) {
  const CheckpointSettings& s = options.checkpoint;
  return !s.folder.empty() || !s.memory.empty() || s.first_step >= 0 || options.launch.nnodes > 1;
}

int train_rank(const RankStart& start, const Options& options, const DeviceReport& devices) {
  RecorderHeader* recorder = static_cast<RecorderHeader*>(start.recorder);
  recorder->capacity = Observer::recorder_capacity(options);
  recorder->magic = kRecorderMagic;
  Options here = options;
  const auto notes = unpack<std::vector<std::string>>(start.note);
  follow_note(here.checkpoint, notes.at(0));
  here.world.algorithm_costs = notes.at(1);  // node 0's, so that all ranks choose alike
  return run_rank(start, here, devices, unpack<std::vector<checkpoint::DataIdentity>>(notes.at(2)));
}

// One start of all ranks, to their end; 0 or the exit code. `again`: the launchers of all nodes begin once more.
int attempt(Options& options, const DeviceReport& devices, Restarts& restarts, ReplicaFolder& replicas,
            RunFolder& folder, bool& again) {
  const double peak = peak_flops(devices) * options.launch.nnodes;  // other nodes have what this one has
  Observer observer(options, peak, &folder);
  if (options.launch.nnodes > 1) options.launch.inventory = pack(Inventory{replicas.commits(), node_kernels()});
  options.launch.lacks = [&options](const std::string& inventory) { return lacks_kernels(options.kernels, inventory); };
  const auto tell = [&] {
    if (const std::string words = restarts.words(); !words.empty()) observer.message(words);
  };
  if (options.launch.node_rank > 0) tell();
  Launch launch(options.launch, observer);
  std::vector<checkpoint::DataIdentity> identities;
  try {
    if (launch.gives_job()) {
      Plan plan;
      if (!options.chaos.empty()) parse_chaos(options.chaos, launch.ranks());
      observer.message(settle_kernels(options, launch.inventories()));
      observer.job = restarts.build(launch, plan);
      observer.job.kernels = options.kernels.chosen;
      observer.message(settle_algorithms(options, observer.job));
      tell();
      if (!options.checkpoint.kept.empty()) observer.begin_after(options.checkpoint.first_step);
      take_from_plan(options, plan);
      require_commits_for_rollback(options, plan);
      if (keeps_replicas(options, plan)) observer.say(replicas.settle(options, plan, observer.job));
      restarts.allow();
      require_checkpoint_fits(options.checkpoint, observer.job);
      if (identifies_data(options)) identities = identify_data(observer.job, plan.data.context);
      if (!identities.empty()) require_same_data(options.checkpoint, observer.job, plan, identities.front());
      restarts.begin(observer.job);
      if (restarts.done() == 0) require_space(options.checkpoint, observer.job);
      check_device_memory(options, observer.job, devices);
      if (options.prove) observer.say(prove_plan(options, plan, launch.ranks()).text + "\n");
      remove_replaced(options, plan);
      if (restarts.done() == 0) folder.begin(observer.job, plan.modules);
      settle_lineage(options, folder.id(), plan);
      folder.begins_with(options.checkpoint.lineage);
    }
  } catch (const Error& error) {
    launch.refuse(error);
    throw;
  }
  const std::string job = launch.gives_job() ? serialize_job(observer.job) : "";
  observer.job = written_out(observer.job);  // ranks tell of ops as they run
  const int code = launch.run(
      job, [&](const RankStart& start) { return train_rank(start, options, devices); },
      launch.gives_job()
          ? pack(std::vector{note_of(options.checkpoint), options.world.algorithm_costs, pack(identities)})
          : "");
  again = launch.begins_again();
  if (again) restarts.remember(observer.skipped_steps(), observer.not_finite_step());
  if (code == static_cast<int>(Exit::preempted) && launch.gives_job() && !again)
    observer.message(fmt::format("prun: stopped by {}; {} has what was trained, --resume auto goes on\n",
                                 observer.stop_signal() == SIGINT ? "Ctrl-C" : "SIGTERM",
                                 checkpoint::resolve(options.checkpoint.folder)));
  if (again) return code;
  observer.message(folder.end(code));
  const int last = observer.finish(code);
  if (options.json && launch.gives_job()) fmt::print("{}\n", observer.result(last));
  return last;
}

}  // namespace

int run_command(Options& options) {
  const DeviceReport devices = check_devices(options);
  settle_options(options, devices);
  Restarts restarts(options);
  const bool decides = options.launch.node_rank == 0;
  const CheckpointLock lock(decides ? options.checkpoint.folder : "");  // of the job
  settle_checkpoints(options.checkpoint, decides);
  require_owner(options);
  RunFolder folder(options);
  ReplicaFolder replicas(options);  // outlives attempts, which read what the one before has left there
  for (;;) try {
      bool again = false;
      const int code = attempt(options, devices, restarts, replicas, folder, again);
      if (!again) return code;
      restarts.begin_again(code == static_cast<int>(Exit::preempted));
      options.chaos.clear();  // what it brought about has come
    } catch (const Error& error) {
      if (restarts.done() > 0) fmt::print(stderr, "{}", folder.end(static_cast<int>(error.code())));
      throw;
    }
}

}  // namespace prun
