// One attempt. An Observer watches the ranks.
//
//     launchers join --> node 0 builds and checks the job --> ranks run it to its end --> exit code, or another attempt
#include "job/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "checkpoint/history.h"
#include "exec/chaos.h"
#include "exec/job_run.h"
#include "exec/recorder.h"
#include "job/adapters.h"
#include "job/algorithm_choice.h"
#include "job/build.h"
#include "job/checkpoint_owner.h"
#include "job/data_course.h"
#include "job/device_check.h"
#include "job/feed.h"
#include "job/inventory.h"
#include "job/non_finite.h"
#include "job/proof.h"
#include "job/rank.h"
#include "job/replicas.h"
#include "job/restart.h"
#include "job/settle.h"
#include "launch/launch.h"
#include "script/script.h"
#include "watch/observer.h"

namespace prun {
namespace {

// Returns whether checkpoints store the data's identity or nodes compare it.
bool identifies_data(const JobSpec& spec) {
  const CheckpointSettings& s = spec.checkpoint;
  return !s.folder.empty() || !s.memory.empty() || s.resumes || spec.launch.nnodes > 1;
}

int train_rank(const RankStart& start, const JobSpec& spec, const DeviceReport& devices) {
  RecorderHeader* recorder = static_cast<RecorderHeader*>(start.recorder);
  recorder->capacity = Observer::recorder_capacity(spec.watch);
  recorder->magic = kRecorderMagic;
  JobSpec here = spec;
  const auto notes = unpack<std::vector<std::string>>(start.note);
  follow_note(here.checkpoint, notes.at(0));
  return run_rank(start, here, devices, unpack<std::vector<checkpoint::DataIdentity>>(notes.at(1)));
}

// Runs all ranks once, to their end. Returns the exit code. `again`: the launchers of all nodes begin another attempt.
int attempt(JobSpec& spec, const DeviceReport& devices, Restarts& restarts, ReplicaFolder& replicas, RunFolder& folder,
            JobFeed& feed, bool& again) {
  describe_to_views(spec);
  const double peak = peak_flops(devices) * spec.launch.nnodes;  // assumes that all nodes have the same devices
  Observer observer(spec.watch, peak, &folder);
  if (spec.launch.nnodes > 1) spec.launch.inventory = pack(Inventory{replicas.commits(), node_kernels()});
  spec.launch.lacks = [&spec](const std::string& inventory) { return lacks_kernels(spec.kernels, inventory); };
  const auto tell = [&] {
    if (const std::string words = restarts.words(); !words.empty()) observer.message(words);
  };
  if (spec.launch.node_rank > 0) tell();
  Launch launch(spec.launch, observer);
  Job job;
  std::vector<checkpoint::DataIdentity> identities;
  try {
    if (launch.gives_job()) {
      Plan plan;
      if (!spec.chaos.empty()) parse_chaos(spec.chaos, launch.ranks());
      observer.message(settle_kernels(spec, launch.inventories()));
      job = restarts.build(launch, plan);
      describe_to_views(spec);
      spec.watch.plan_file = find_plan(spec.plan, spec.lua_dir);
      observer.message(settle_algorithms(spec, job));
      settle_base(spec, plan, job);
      job.numerics = settled_numerics(spec);
      tell();
      if (!spec.checkpoint.kept.empty()) observer.begin_after(spec.checkpoint.begin.step);
      take_from_plan(spec, plan);
      feed.await(plan, spec);
      require_commits_for_rollback(spec, plan);
      if (keeps_replicas(spec, plan)) observer.say(replicas.settle(spec, plan, job));
      restarts.allow();
      require_checkpoint_fits(spec.checkpoint, job);
      require_effect(parse_chaos(spec.chaos, launch.ranks()), spec.checkpoint.begin.step, plan.steps,
                     !spec.checkpoint.folder.empty());
      require_traced(spec.watch.trace_steps, spec.checkpoint.begin.step, plan.steps);
      if (identifies_data(spec)) identities = identify_data(job, plan.data.context, feed.fingerprint());
      if (!identities.empty()) require_same_data(spec.checkpoint, job, plan, identities.front());
      restarts.begin(job);
      if (restarts.done() == 0) require_space(spec.checkpoint, job);
      check_device_memory(spec, job, devices);
      if (spec.prove) observer.say(prove_plan(spec, plan, launch.ranks()).text + "\n");
      remove_replaced(spec, plan);
      if (restarts.done() == 0) folder.begin(job, plan.modules);
      settle_lineage(spec, folder.id(), plan);
      folder.begins_with(spec.checkpoint.lineage);
      feed.attach(job, spec);
    }
  } catch (const Error& error) {
    launch.refuse(error);
    throw;
  }
  const std::string bytes = launch.gives_job() ? serialize_job(job) : "";
  if (launch.gives_job()) observer.show(written_out(job));  // ranks record ops of the unrolled program
  const int code = launch.run(
      bytes, [&](const RankStart& start) { return train_rank(start, spec, devices); },
      launch.gives_job() ? pack(std::vector{note_of(spec.checkpoint), pack(identities)}) : "");
  again = launch.begins_again();
  if (again) restarts.remember(observer.not_finite().skipped_steps(), observer.not_finite().failed_step());
  if (code == static_cast<int>(Exit::preempted) && launch.gives_job() && !again)
    observer.message(fmt::format("prun: stopped by {}; {} has what was trained, --resume auto goes on\n",
                                 observer.stop_signal() == SIGINT ? "Ctrl-C" : "SIGTERM",
                                 checkpoint::resolve(spec.checkpoint.folder)));
  if (again) return code;
  observer.message(folder.end(code));
  const int last = observer.finish(code);
  if (spec.watch.json && launch.gives_job()) fmt::print("{}\n", observer.result(last));
  return last;
}

}  // namespace

int run_job(JobSpec& spec, const DeviceReport& devices) {
  Restarts restarts(spec);
  const bool decides = spec.launch.node_rank == 0;
  const CheckpointLock lock(decides ? spec.checkpoint.folder : "");  // lock of the whole job
  settle_checkpoints(spec.checkpoint, decides);
  require_owner(spec);
  RunFolder folder(spec.watch);
  ReplicaFolder replicas(spec);  // outlives the attempts, because each reads the commits of the previous one
  JobFeed feed;                  // also outlives them, because the feeder waits for its lock
  for (;;) try {
      bool again = false;
      const int code = attempt(spec, devices, restarts, replicas, folder, feed, again);
      if (!again) return code;
      restarts.begin_again(code == static_cast<int>(Exit::preempted));
      spec.chaos.clear();  // the injected faults have happened
    } catch (const Error& error) {
      if (restarts.done() > 0) fmt::print(stderr, "{}", folder.end(static_cast<int>(error.code())));
      throw;
    }
}

}  // namespace prun
