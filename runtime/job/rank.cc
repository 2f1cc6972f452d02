// Order of work, equal on every rank:
//
//     check program -> open world -> allocate memory -> connect -> create executor -> run
#include "job/rank.h"

#include <fmt/format.h>
#include <prun/sdk/tls.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "base/cores.h"
#include "base/log.h"
#include "base/machine_id.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/transport/transport_choice.h"
#include "device/device.h"
#include "exec/chaos.h"
#include "exec/rank_device.h"
#include "exec/recorder.h"
#include "job/data_course.h"
#include "job/heterogeneous_devices.h"
#include "job/launcher_bootstrap.h"
#include "job/replica_exchange.h"
#include "kernels/devices.h"
#include "watch/memory_use.h"

namespace prun {
namespace {

// Identifies the machine, by its boot id, and the cores that this rank may use.
std::string these_cores() {
  std::string text = machine_id();
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  text.append(reinterpret_cast<const char*>(&cores), sizeof cores);
  return text;
}

// Returns the number of ranks on this rank's cores, because launchers such as mpirun may bind each process to its own
// cores. Collective.
int ranks_on_these_cores(const RankStart& start) {
  if (start.local_ranks == start.ranks) return start.ranks;
  const std::string mine = these_cores();
  const std::vector<std::string> all = start.launcher->all_gather(mine);
  return static_cast<int>(std::count(all.begin(), all.end(), mine));
}

// Records the transports. Sockets between ranks of one host are encrypted only if options force them to TCP.
void tell_transports(RecorderHeader& recorder, const World& world, const JobSpec& spec) {
  const std::string name = world.transport_name(), &interface = spec.world.network_interface;
  const bool leaves = world.several_hosts() || spec.world.transport_options.find("unix=0") != std::string::npos;
  std::string words = name == "none" ? "" : transport_words(name);
  if (!words.empty() && !interface.empty()) words += fmt::format(" ({})", interface);
  if (!words.empty() && spec.world.encrypt && leaves)
    words += sdk::kernel_has_tls() ? ", TLS (kTLS)" : ", TLS (no kTLS)";
  if (world.calibrated()) words += ", algorithms by calibration";
  words.copy(recorder.transports, sizeof recorder.transports - 1);
  recorder.connected.store(1);
}

// Rank 0 prints the warning, because the user watches its node.
void compare_devices(const RankStart& start, const JobSpec& spec, const DeviceReport& devices) {
  const std::vector<std::string> words =
      start.launcher->all_gather(describe_device(devices, spec.device_of(start.host_rank)));
  if (const std::string unlike = heterogeneity_warning(words); start.rank == 0 && !unlike.empty())
    fmt::print(stderr, "prun: {}\n", unlike);
}

WorldOptions world_options(const RankStart& start, const JobSpec& spec, const Device& device, const Job& job) {
  WorldOptions world = spec.world;
  static_cast<RankPlace&>(world) = start;
  if (job.numerics.algorithms) world.algorithm_costs = *job.numerics.algorithms;
  world.memory = device.memory_kind();
  if (world.memory != PRUN_MEM_HOST) world.device = spec.device_of(start.host_rank);
  for (const Program& program : job.classes) world.arena_bytes = std::max(world.arena_bytes, program.arena_bytes);
  return world;
}

ExecutorOptions executor_options(const RankStart& start, const JobSpec& spec) {
  ExecutorOptions executor;
  executor.rank = start.rank;
  const int sharing = ranks_on_these_cores(start);
  executor.threads = threads_per_rank(sharing);
  executor.spins = usable_cores() > sharing ? 2000 : 200;
  executor.recorder = static_cast<RecorderHeader*>(start.recorder);
  executor.aborted = [&] { return start.launcher->aborted(); };
  executor.print = [&](const std::string& line) { start.launcher->print(line); };
  executor.failed = [&](const Error& error, const std::string& op) { start.launcher->fail(error, op); };
  executor.deadline_s = spec.world.deadline_s;
  executor.timed = !spec.watch.trace.empty();
  if (spec.launch.grace_s > 0 || spec.launch.nnodes > 1)
    executor.begin_step = [&](int64_t step) { return start.launcher->begin_step(step); };
  return executor;
}

// Rank 0's pid and time name the attempt, equal on all ranks.
CheckpointOptions checkpoint_options(const RankStart& start, const JobSpec& spec) {
  CheckpointOptions checkpoint;
  checkpoint.folder = spec.checkpoint.folder;
  checkpoint.resume = spec.checkpoint.resume;
  checkpoint.base = spec.checkpoint.base;
  checkpoint.keep = spec.checkpoint.keep;
  checkpoint.read = spec.checkpoint.read;
  checkpoint.lineage = spec.checkpoint.lineage;
  checkpoint.memory = spec.checkpoint.memory;
  checkpoint.every = spec.checkpoint.every;
  checkpoint.take = spec.purpose == Purpose::train ? checkpoint::Take::state
                                                   : checkpoint::parameters_or_averages(spec.checkpoint.ema);
  checkpoint.program = start.job_hash;
  if (!checkpoint.folder.empty() || !checkpoint.memory.empty())
    checkpoint.attempt = start.launcher->all_gather(fmt::format("{:x}{:x}", getpid(), now_ns()))[0];
  return checkpoint;
}

// Ranks agree through the launchers, because the shared folder is the part that failed.
void agree_on_abandoning(CheckpointOptions& checkpoint, LauncherClient* launcher, const Job& job) {
  checkpoint.bytes = checkpoint_bytes(job);
  checkpoint.abandoning = {
      .abandon = [launcher](int64_t step, const auto& failure) { launcher->abandon(step, pack(failure)); },
      .abandoned = [launcher](int64_t step) { return launcher->abandoned(step); }};
}

// Records the checkpoint in progress and the last committed one.
void note_saves(CheckpointOptions& checkpoint, RecorderHeader* recorder) {
  using Save = CheckpointOptions::Save;
  checkpoint.told = [recorder](int64_t step, Save save) {
    recorder->saving_ns.store(now_ns(), std::memory_order_relaxed);
    if (save == Save::committed) recorder->saved.store(step, std::memory_order_relaxed);
    recorder->saving.store(save == Save::begun ? step : 0, std::memory_order_release);
  };
}

// Resources of a rank, in the order of acquisition; they outlive error reporting.
struct Rank {
  explicit Rank(const RankStart& start)
      : heartbeat(*static_cast<RecorderHeader*>(start.recorder)),
        bootstrap(*start.launcher, static_cast<RecorderHeader*>(start.recorder)) {}
  Heartbeat heartbeat;
  Job job;
  LauncherBootstrap bootstrap;
  std::unique_ptr<Device> device;
  std::unique_ptr<World> world;
  std::unique_ptr<RankDevice> memory;
  std::unique_ptr<ReplicaExchange> replicas;
  std::unique_ptr<JobRun> executor;
};

// Sets up commits to memory of a job with several nodes.
void exchange_replicas(const RankStart& start, const JobSpec& spec, Rank& rank, CheckpointOptions& checkpoint) {
  if (checkpoint.memory.empty() || spec.launch.nnodes == 1) return;
  rank.replicas = std::make_unique<ReplicaExchange>(start, spec);
  if (!spec.checkpoint.kept.empty()) checkpoint.resume = rank.replicas->restore(rank.job, spec.checkpoint.kept);
  checkpoint.apart = {
      .copy = [&replicas = *rank.replicas](const auto& commit, const auto& files) { replicas.copy(commit, files); },
      .kept = [launcher = start.launcher](int64_t step) { launcher->kept(step); },
      .committed = [launcher = start.launcher] { return launcher->committed(); },
      .clears = start.local_rank == 0};
}

void train(const RankStart& start, const JobSpec& spec, const DeviceReport& devices,
           const std::vector<checkpoint::DataIdentity>& data, Rank& rank, std::string& where) {
  where = "joining";
  log_as_rank(start.rank);
  if (job_hash(start.job) != start.job_hash)
    throw Error(Exit::mismatch, fmt::format("rank {} has another program than the launcher sent", start.rank));
  rank.job = parse_job(start.job);
  take_kernels_of(rank.job);
  if (start.node > 0 && start.local_rank == 0) require_data_of_node_0(data, rank.job, start.node);
  const auto mine = static_cast<size_t>(rank.job.class_of_rank[static_cast<size_t>(start.rank)]);
  rank.job.classes[mine] = written_out(rank.job.classes[mine]);
  const Program& program = rank.job.classes[mine];
  ExecutorOptions execution = executor_options(start, spec);
  execution.checkpoint = checkpoint_options(start, spec);
  if (!spec.checkpoint.strict) agree_on_abandoning(execution.checkpoint, start.launcher, rank.job);
  if (!data.empty()) execution.checkpoint.data = data.front();
  note_saves(execution.checkpoint, execution.recorder);
  execution.generation = spec.generation.options;
  execution.predictions = spec.forward.staged();
  rank.device = open_device(program.device);
  execution.checkpoint.threads = std::max(1, execution.threads / 2);
  execution.checkpoint.wait_s = spec.world.deadline_s;
  execution.checkpoint.numerics = rank.job.numerics;
  if (rank.device->memory_kind() != PRUN_MEM_HOST) compare_devices(start, spec, devices);
  exchange_replicas(start, spec, rank, execution.checkpoint);
  rank.world = World::open(world_options(start, spec, *rank.device, rank.job), rank.bootstrap);
  rank.memory =
      open_rank_device(*rank.device, program, *rank.world, {spec.device_of(start.host_rank), spec.device_options});
  try {
    rank.world->connect();
    log_info("transport", "connected over {}", rank.world->transport_name());
    tell_transports(*execution.recorder, *rank.world, spec);
    if (!spec.chaos.empty()) {
      const auto chaos = std::make_shared<Chaos>(spec.chaos, start.rank, start.ranks, *rank.world);
      execution.poison = chaos->poison();
      execution.omission = chaos->omission();
      execution.before_step = [chaos](int64_t step) { chaos->begin_step(step); };
    }
    // All ranks are still mapped when a rank begins its last step; later, the share of peers that have unmapped would
    // count as this rank's.
    if (const int64_t last = program.schedule.steps - 1; last > program.schedule.begin.step)
      execution.before_step = [others = execution.before_step, recorder = execution.recorder, last](int64_t step) {
        if (others) others(step);
        if (step == last) recorder->pss.store(proportional_set_size("self"));
      };
    rank.executor = rank.memory->make_executor(*rank.world, execution);
  } catch (const Aborted&) {
    throw;
  } catch (const Error& error) {
    throw rank.memory->explained(error);
  }
  where.clear();
  log_debug("exec", "{} of arena on {}, {} threads", human_bytes(program.arena_bytes), program.device,
            execution.threads);
  try {
    rank.executor->run();
  } catch (...) {
    where = rank.executor->failed_op();
    throw;
  }
  log_debug("exec", "the program has ended");
  // A run of one step, or one that ended early, on all ranks alike: they wait for each other before the first unmaps.
  if (execution.recorder->pss.load() == 0) {
    execution.recorder->pss.store(proportional_set_size("self"));
    start.launcher->all_gather("");
  }
}

}  // namespace

int be_rank(const RankStart& start, const std::function<void(std::string& where)>& body) {
  std::string where;
  try {
    body(where);
    return 0;
  } catch (const Aborted&) {
    start.launcher->end_with_others();
    return static_cast<int>(Exit::transport);
  } catch (const std::exception& caught) {
    const Error error = error_of(caught);
    start.launcher->fail(error, where);
    return static_cast<int>(error.code());
  }
}

int run_rank(const RankStart& start, const JobSpec& spec, const DeviceReport& devices,
             const std::vector<checkpoint::DataIdentity>& data) {
  spec.binding.apply(start.local_rank);
  Rank rank(start);
  const int code = be_rank(start, [&](std::string& where) { train(start, spec, devices, data, rank, where); });
  if (code == 0 && rank.executor->stopped_early()) return static_cast<int>(Exit::preempted);
  if (code == 0 || rank.executor == nullptr || rank.executor->settle()) return code;
  std::fflush(nullptr);
  _exit(code);  // destructors would block on device work
}

}  // namespace prun
