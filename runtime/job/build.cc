// Runs the script, reads its plan, compiles it, verifies the job.
#include "job/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/cores.h"
#include "base/log.h"
#include "base/text.h"
#include "compile/compile.h"
#include "data/data_files.h"
#include "data/packed_documents.h"
#include "ir/plan_reader.h"
#include "ir/state.h"
#include "job/adapters.h"
#include "job/non_finite.h"
#include "job/pass_watch.h"
#include "job/replicas.h"
#include "job/spent_time.h"
#include "job/weights.h"
#include "kernels/devices.h"
#include "launch/preflight.h"
#include "script/script.h"
#include "verify/verify.h"

namespace prun {
namespace {

ScriptOptions script_options(const JobSpec& spec, int ranks, bool help) {
  ScriptOptions script;
  script.plan_path = spec.plan;
  script.lua_dir = spec.lua_dir;
  script.world = ranks;
  script.settings = spec.settings;
  script.help = help;
  script.base = spec.checkpoint.base;
  if (script.base.empty())
    script.base_was =
        base_of_checkpoint(spec.purpose == Purpose::generate ? spec.generation.checkpoint : spec.checkpoint.resume);
  script.reads_data = spec.purpose != Purpose::describe;
  return script;
}

// Throws for the first op without a kernel on this device, and names a device that has one.
void require_supported(const Job& job, const Device& device) {
  for (const Program& program : job.classes)
    for (const Body& body : program.bodies)
      for (const Stream& stream : body.streams)
        for (const Op& op : stream.ops) {
          if (op.def->op_class != OpClass::compute || device.supports(op, program)) continue;
          TensorId tensor = op.writes.empty() ? op.reads.at(0) : op.writes[0];
          std::string message = fmt::format("the device '{}' cannot run {} on {}", device.name(), op.def->name,
                                            dtype_name(program.tensors[tensor].dtype));
          for (const char* name : {"cpu", "reference"})
            if (open_device(name)->supports(op, program)) message += fmt::format("; --device {} can", name);
          throw plan_error(std::move(message), op.site);
        }
}

// Reports phases whose period exceeds the number of steps. A short trial of a plan has such phases, so they are not
// rejected.
void say_what_never_comes(const Plan& plan) {
  const auto say = [&](std::string_view what, int64_t every, const Site& site) {
    if (every > plan.steps)
      fmt::print(stderr, "prun: {}: {} after every {} steps never come in a run of {}\n", site.text(), what, every,
                 counted(plan.steps, "step"));
  };
  if (plan.keeping) say("checkpoints", plan.keeping->every, plan.keeping->site);
  if (plan.evaluation) say("evaluations", plan.evaluation->every, plan.evaluation->site);
  if (plan.evaluation && !plan.data.part && !plan.data.files.empty() && plan.evaluation->data.files == plan.data.files)
    fmt::print(stderr,
               "prun: {}: evaluations read the files that are trained with; without data of its own prun.eval holds "
               "out a part of them\n",
               plan.evaluation->site.text());
  if (plan.report) say("reports", plan.report->every, plan.report->site);
  for (const Strategy& strategy : plan.strategies)
    for (const StrategyUnit& unit : strategy.units)
      if (!unit.sync.empty() && unit.sync_every > plan.steps) {
        say("averages of parameters", unit.sync_every, unit.sync.front().site);
        return;
      }
}

// Returns the number of non-overlapping samples in the range that is read; 0 = unlimited, or known to the ranks alone.
int64_t samples_of(const Data& data) {
  if (data.capacity > 0) return 0;
  return data.context > 0 && data.count > 0 ? (data.count - 1) / data.context : data.count;
}

// Reports sets with fewer samples than a plan reads: legal, but rarely intended.
void report_samples_that_count_twice(const Plan& plan) {
  const int64_t batch = plan.data.global_batch, samples = samples_of(plan.data);
  if (samples > 0 && batch > samples)
    fmt::print(stderr,
               "prun: {}: a step reads {}, and the data have {} (order '{}'): some count more than once in it\n",
               plan.data.site.text(), counted(batch, "sample"), samples, plan.data.order);
  if (!plan.evaluation || plan.evaluation->data.whole > 0) return;
  const Evaluation& evaluation = *plan.evaluation;
  const int64_t set = samples_of(evaluation.data), per_batch = evaluation.data.global_batch;
  if (set > 0 && evaluation.batches > set / per_batch)
    fmt::print(stderr,
               "prun: {}: an evaluation reads {} x {} samples, and its set has {} (order '{}'): some count more than "
               "once; write batches = \"all\" to evaluate each once\n",
               evaluation.site.text(), evaluation.batches, per_batch, set, evaluation.data.order);
}

// Returns the period in steps; 0 = no checkpoints. A check or a dump shows the plan's checkpoints; a run also needs a
// folder.
int64_t steps_between_checkpoints(const JobSpec& spec, const Plan& plan) {
  const CheckpointSettings& checkpoint = spec.checkpoint;
  const bool replicates = keeps_replicas(spec, plan);
  const bool wanted = !checkpoint.folder.empty() || checkpoint.every > 0 || replicates ||
                      (plan.keeping && spec.purpose != Purpose::train);
  if (!wanted) return 0;
  int64_t every = checkpoint.every;
  if (every == 0 && plan.keeping) every = plan.keeping->every;
  if (plan.keeping && plan.evaluation && !plan.keeping->best.empty() && every % plan.evaluation->every != 0)
    throw usage_error(
        fmt::format("--checkpoint-every {} is no multiple of {}, after which evaluations come: the best checkpoint by "
                    "{} needs an evaluation at each",
                    every, plan.evaluation->every, plan.keeping->best));
  if (!replicates || plan.keeping->memory_every == 0) return every > 0 ? every : plan.steps;
  const int64_t memory_every = plan.keeping->memory_every;
  if (every % memory_every != 0)
    throw plan_error(
        fmt::format(
            "commits to memory every {} steps do not meet those to the disk, every {}: one must divide the other",
            memory_every, every),
        plan.keeping->site);
  return memory_every;
}

}  // namespace

int64_t vocabulary_multiple(const JobSpec& spec, const Device& device) {
  return spec.pad_vocabulary > 0 ? spec.pad_vocabulary : device.vocabulary_multiple();
}

Plan record_plan(const JobSpec& spec, int ranks, std::optional<PlanSizes> sizes) {
  const TimeSpent time("script");
  ScriptOptions script = script_options(spec, ranks, false);
  script.sizes = std::move(sizes);
  ScriptResult made = run_script(script);
  add_spent_time(made.processor_seconds);
  Plan plan = read_plan(made.plan_cbor);
  plan.modules = std::move(made.modules);
  count_documents(plan);
  return plan;
}

std::vector<Plan> record_plans(const JobSpec& spec, int ranks, std::vector<PlanSizes> sizes) {
  const TimeSpent time("script");
  ScriptOptions script = script_options(spec, ranks, false);
  script.sizes = std::move(sizes.at(0));
  script.more_sizes.assign(std::make_move_iterator(sizes.begin() + 1), std::make_move_iterator(sizes.end()));
  const ScriptResult made = run_script(script);
  add_spent_time(made.processor_seconds);
  std::vector<Plan> plans = read_plans(made.plan_cbor);
  for (Plan& plan : plans) {
    plan.modules = made.modules;
    count_documents(plan);
  }
  return plans;
}

Plan outline_plan(const JobSpec& spec, int ranks, size_t* digest) {
  const TimeSpent time("script");
  ScriptOptions script = script_options(spec, ranks, false);
  script.outline = true;
  const ScriptResult made = run_script(script);
  add_spent_time(made.processor_seconds);
  if (digest != nullptr) *digest = std::hash<std::string>()(made.plan_cbor);
  return read_plan(made.plan_cbor);
}

Plan record_generation(const JobSpec& spec, int ranks) {
  PlanSizes sizes;
  sizes.tensor_ranks = ranks;
  return generation_plan(record_plan(spec, ranks, std::move(sizes)), spec.generation.generation());
}

namespace {

Forward forward_of(const JobSpec& spec) { return {spec.purpose == Purpose::predict, spec.forward.output}; }

// Purpose of a compilation: the plan itself; a part from which a larger plan is predicted, without folded microbatches;
// an estimate of such a part's memory; or of its time.
enum class Of { itself, part, estimate, time };

Job compile_watched(const JobSpec& spec, const Plan& plan, PassWatch& watch, Of of,
                    const std::vector<int>& ranks = {}) {
  const TimeSpent time("compile");
  const std::unique_ptr<Device> device = open_device(spec.device, spec.device_options);
  CompileOptions compile_options;
  compile_options.device = spec.device;
  compile_options.check_finite = spec.check_finite;
  compile_options.count_memory = of == Of::estimate;
  compile_options.leave_memory = of == Of::time;
  compile_options.every_microbatch = of != Of::itself || spec.every_microbatch;
  compile_options.only_classes = ranks;
  compile_options.checkpoint_every = steps_between_checkpoints(spec, plan);
  compile_options.resumes = spec.checkpoint.resumes;
  compile_options.begin = spec.checkpoint.begin;
  compile_options.most_skips = most_skips(spec);
  compile_options.check_replicas = spec.check_replicas;
  if (spec.purpose == Purpose::generate) compile_options.generation = spec.generation.generation();
  if (spec.runs_forward()) compile_options.forward = forward_of(spec);
  const int threads = threads_per_rank(spec.launch.nproc);
  compile_options.workspace_bytes = [&, threads](const Program& program, const Op& op) {
    return device->workspace_bytes(program, op, threads);
  };
  compile_options.joins_steps = device->queue() != nullptr || spec.joins_steps;
  compile_options.vocabulary_multiple = vocabulary_multiple(spec, *device);
  compile_options.fuses = [&](std::string_view kind) { return device->fuses(kind); };
  if (spec.time_passes || !spec.dump_after.empty())
    compile_options.after_pass = [&](const PassReport& report) { watch.add(report); };
  compile_options.starts_over = [&] { watch.start_over(); };
  Job job = compile(plan, compile_options);
  require_updates(spec, job);
  log_info("compile", "programs for ranks of {}, {} parameters", counted(std::ssize(job.classes), "kind"),
           grouped(parameter_count(job)));
  return job;
}

// Returns the limit in bytes; 0 = unlimited. Only a run in host memory is limited, because check and dump may describe
// any cluster.
int64_t memory_limit(const JobSpec& spec, const Device& device) {
  const bool runs = (spec.purpose == Purpose::train || spec.purpose == Purpose::generate || spec.runs_forward()) &&
                    device.memory_kind() == PRUN_MEM_HOST;
  return runs ? available_memory() / spec.launch.nproc : 0;
}

// Returns whether a program that lists every microbatch may fit although the listed period, which takes slightly more
// memory, does not. Returns false for several nodes, because they must run the same program in spite of different
// limits.
bool fits_if_listed_whole(const JobSpec& spec, const Job& job) {
  if (spec.launch.nnodes > 1 || spec.every_microbatch) return false;
  const int64_t limit = memory_limit(spec, *open_device(spec.device, spec.device_options));
  const auto takes = [](const Program& program) { return program.arena_bytes + program.host_arena_bytes; };
  const bool repeats = std::any_of(job.classes.begin(), job.classes.end(), [](const Program& program) {
    return program.bodies.next() > kStepBody && program.step().repeat.any();
  });
  int64_t most = 0;
  for (const Program& program : job.classes) most = std::max(most, takes(program));
  return limit > 0 && repeats && most > limit && most / 4 < limit / 3;
}

void verify(const JobSpec& spec, const Job& job, int ranks) {
  const TimeSpent time("verify");
  const std::unique_ptr<Device> device = open_device(spec.device, spec.device_options);
  require_supported(job, *device);
  require_valid(job, memory_limit(spec, *device), spec.launch.nproc);
  log_info("verify", "{} for {}: no finding", spec.plan, counted(ranks, "rank"));
}

}  // namespace

Job compile_plan(const JobSpec& spec, const Plan& plan, int ranks, bool verified, const std::vector<int>& only) {
  PassWatch watch("");
  Job job = compile_watched(spec, plan, watch, Of::part, only);
  if (verified) verify(spec, job, ranks);
  return job;
}

Job compile_ranks(const JobSpec& spec, const Plan& plan, const std::vector<int>& ranks) {
  PassWatch watch("");
  return compile_watched(spec, plan, watch, Of::itself, ranks);
}

Job compile_roughly(const JobSpec& spec, const Plan& plan, bool memory, const std::vector<int>& only) {
  PassWatch watch("");
  return compile_watched(spec, plan, watch, memory ? Of::estimate : Of::time, only);
}

Job build_job(const JobSpec& spec, int ranks, Plan* read) {
  PassWatch watch(spec.dump_after);
  const bool generates = spec.purpose == Purpose::generate;
  Plan plan = generates ? record_generation(spec, ranks) : record_plan(spec, ranks);
  if (spec.runs_forward()) plan = forward_plan(std::move(plan), forward_of(spec));
  if (!generates) require_base_used(spec, plan);
  if (!generates) require_weights_fit(plan, spec.purpose == Purpose::train, spec.checkpoint.resumes);
  watch.lap("script");
  log_info("script", "{} is recorded", spec.plan);
  Job job = compile_watched(spec, plan, watch, Of::itself);
  if (fits_if_listed_whole(spec, job)) {
    watch.start_over();
    JobSpec whole = spec;
    whole.every_microbatch = true;
    job = compile_watched(whole, plan, watch, Of::itself);
  }
  watch.print_result(spec.plan);
  verify(spec, job, ranks);
  watch.lap("verify");
  if (spec.purpose == Purpose::train || spec.purpose == Purpose::check || spec.runs_forward()) check_data(plan);
  watch.lap("data");
  if (!spec.runs_forward()) say_what_never_comes(plan);
  if (spec.purpose != Purpose::describe && !spec.runs_forward()) report_samples_that_count_twice(plan);
  if (spec.time_passes) watch.print_times();
  if (read != nullptr) *read = std::move(plan);
  return job;
}

void print_remarks(const JobSpec& spec) {
  try {
    outline_plan(spec, spec.ranks());
  } catch (const Error&) {  // the search reports it, unless other arguments are right
  }
}

ScriptResult describe_plan(const JobSpec& spec) { return run_script(script_options(spec, spec.ranks(), true)); }

}  // namespace prun
