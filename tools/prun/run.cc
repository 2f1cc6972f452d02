// prun PLAN: completes the options, checks this host's devices, and runs the job.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "calibrate/algorithm_costs.h"
#include "cluster_hosts.h"
#include "environment.h"
#include "foreign_launch.h"
#include "job/attempt.h"
#include "job/device_check.h"
#include "job/non_finite.h"
#include "job/settle.h"
#include "job_options.h"
#include "shared_devices.h"

namespace prun {
namespace {

// Checks a run's name, which becomes part of its folder's name.
std::string check_run_name(const std::string& text) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  if (text.empty() || text.size() > 60 || text.front() == '.' || !std::all_of(text.begin(), text.end(), fits))
    throw usage_error(fmt::format(
        "--name must be at most 60 letters, digits, '-', '_' and '.', without a leading '.', not '{}'", text));
  return text;
}

class Run final : public PlanCommand {
 public:
  Run() { job_.purpose = Purpose::train; }
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;
  const char* json_help() const override {
    return "at the end one JSON object on standard output: exit_code, steps, loss, seconds; the rest goes to stderr";
  }

 private:
  void declare_records(OptionTable& table);
  void declare_checkpoints(OptionTable& table);
  void declare_nodes(OptionTable& table);

  std::string cluster_, launcher_;
};

void Run::declare(OptionTable& table) {
  declare_plan(table, job_);
  table.group("transport");
  option::transport(table, job_);
  option::transport_options(table, job_);
  table.group("ranks and devices");
  option::device(table, job_);
  option::device_options(table, job_);
  option::kernels(table, job_,
                  "kernels of CPUs: any, avx2, avx512, and with +bf16, +pairs, +tiles (default: as the checkpoint, or "
                  "the fastest)");
  option::ranks_per_device(table, job_);
  option::bind(table, job_);
  table.group("checks");
  option::prove(table, job_);
  table.text(
      "--chaos", "SPEC", job_.chaos,
      "bring faults about, to see how the job ends: kill:rank=3@step=7 (stop, delay, reset, flip, enospc, nan, omit)");
  declare_compilation(table, job_);
  declare_records(table);
  declare_checkpoints(table);
  declare_nodes(table);
  table.group("general");
  table.flag("--quiet,-q", job_.watch.quiet, "print only the plan's own output, warnings and failures");
}

void Run::declare_records(OptionTable& table) {
  WatchSpec& watch = job_.watch;
  table.group("records");
  table.text("--metrics", "FILE", watch.metrics.path,
             "write one JSON object a step (-: standard output); --resume goes on in it");
  table.flag("--overwrite", watch.metrics.overwrite,
             "replace what --metrics FILE and --checkpoint DIR have of another run");
  table.whole("--log-every", "K", watch.log_every, 1,
              "show every K-th step as a line of its own, on a terminal too (default: at most one line a second)");
  table.text("--runs", "DIR", watch.runs, "keep plan, arguments, metrics and log of this run in a folder there");
  table.parsed(
      "--name", "NAME", [&watch](const std::string& text) { watch.name = check_run_name(text); },
      "name of this run's folder, between its time and its hash (default: that of the plan)");
  option::trace(table, job_);
  table.parsed(
      "--trace-steps", "A:B", [&watch](const std::string& text) { watch.trace_steps = parse_step_window(text); },
      "of these steps alone, as the screen counts them; A: or :B is open, A is one step (default: from the first on)");
}

void Run::declare_checkpoints(OptionTable& table) {
  CheckpointSettings& checkpoint = job_.checkpoint;
  table.group("checkpoints and restarts");
  table.text("--checkpoint", "DIR", checkpoint.folder, "write checkpoints to this folder");
  option::checkpoint_every(table, job_);
  table.whole("--checkpoint-keep", "N", checkpoint.keep, 1, "remove all but the newest N (default: keep all)");
  table.flag("--checkpoint-strict", checkpoint.strict,
             "end with 15 where a checkpoint cannot be written (default: go on, and try the next one)");
  table.whole("--grace", "SECONDS", checkpoint.grace_s, 1,
              "after SIGTERM or Ctrl-C, how long a last checkpoint may take; then exit code 75 (default 25)");
  table.text("--resume", "auto|PATH", checkpoint.resume,
             "go on from a checkpoint; auto: the newest whole one in --checkpoint, if any");
  option::base(table, job_);
  table.flag("--new-data", checkpoint.new_data,
             "--resume: where the data are not those of the checkpoint, begin with their first sample");
  table.whole("--max-restarts", "K", job_.restart.most, 0,
              "begin again from the last checkpoint, at most K times, after a failure that may pass (default 0)");
  table.whole("--min-ranks", "M", job_.restart.min_ranks, 1,
              "go on with fewer ranks, at least M, when restarts are used up or a node does not return");
}

void Run::declare_nodes(OptionTable& table) {
  table.group("nodes and network");
  table.text("--cluster", "FILE", cluster_,
             "a cluster file whose `nodes:` name hosts: they are the nodes, and this machine is one of them");
  option::nnodes(table, job_);
  option::node_rank(table, job_);
  option::launcher(table, launcher_);
  option::rendezvous(table, job_);
  option::secret_file(table, job_);
  option::port_range(table, job_);
  option::encrypt(table, job_);
  option::link_timeout(table, job_);
  option::interface(table, job_);
  option::timeout(table, job_);
}

void Run::settle() {
  if (!cluster_.empty())
    take_place_among_hosts(job_, cluster_, given_place(line_));
  else if (!line_.given("--nnodes") && !line_.given("--node-rank"))
    take_place_of_launcher(job_, launcher_);
  require_nodes(line_, job_.launch, launcher_);
  pass_to_transports(job_);
  check_ranks(job_);
  check_options(job_.launch);
  require_plan();
  check_checkpoint_options(job_.checkpoint);
  check_metrics_options(job_.watch.metrics, job_.checkpoint.folder);
  check_restart_options(job_);
  check_non_finite_options(job_);
  job_.checkpoint.overwrite = job_.watch.metrics.overwrite;
  job_.watch.metrics.resumes = !job_.checkpoint.resume.empty();
  if (job_.watch.trace_steps.given && job_.watch.trace.empty())
    throw usage_error("--trace-steps needs --trace FILE, where the timeline goes");
  check_transport_hint(job_);
}

int Run::run() {
  if (!job_.launch.silent) warn_of_useless_variables();
  warn_of_link_options(line_, job_.launch);
  const DeviceReport devices = check_devices(job_);
  check_nccl_share(job_);
  if (job_.ranks_per_device > 1 && !devices.devices.empty()) job_.world.transport = transport_of_sharing_ranks(job_);
  settle_job(job_);
  if (job_.launch.node_rank == 0 && job_.world.algorithm.empty())
    job_.world.algorithm_costs = calibrated_algorithm_costs(job_.world.transport_options);
  return run_job(job_, devices);
}

}  // namespace

std::unique_ptr<Command> make_run() { return std::make_unique<Run>(); }

}  // namespace prun
