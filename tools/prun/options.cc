// CLI11 holds each option once, with its help; a command's help, the check of names and the hint at the command that
// has an option all read it from there. The messages are ours.
#include "options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster_hosts.h"
#include "comm/transport/plugin.h"
#include "commands.h"
#include "definer.h"
#include "device/device.h"
#include "elsewhere.h"
#include "foreign_launch.h"
#include "generation_options.h"
#include "job/non_finite.h"
#include "job/pass_watch.h"
#include "simulate/calibration.h"

namespace prun {

void Definer::flag(unsigned commands, const char* name, bool& value, const char* help) {
  if ((commands & command_) != 0) app_.add_flag(name, value, help);
}

void Definer::text(unsigned commands, const char* name, const char* unit, std::string& value, const char* help) {
  if ((commands & command_) != 0) app_.add_option(name, value, help)->type_name(unit);
}

void Definer::parsed(unsigned commands, const char* name, const char* unit, Read read, const char* help, bool many) {
  if ((commands & command_) == 0) return;
  CLI::callback_t read_all = [read](const CLI::results_t& texts) {
    for (const std::string& text : texts) read(text);
    return true;
  };
  CLI::Option* option = app_.add_option(name, std::move(read_all), help)->type_name(unit)->expected(1);
  if (many) option->take_all();
}

void Definer::whole(unsigned commands, const char* name, const char* unit, int& value, int least, const char* help) {
  const auto read = [&value, name = std::string(name), least](const std::string& text) {
    value = whole_number(name, text, least);
  };
  parsed(commands, name, unit, read, help);
}

namespace {

struct Command {
  const char* name;
  Commands bit;
  const char* usage;
  const char* help;
  int (*run)(Options&);
};
const Command kCommands[] = {
    // the first is meant where none is named
    {"run", kRun, "prun PLAN [options]", "train: run the plan on --nproc ranks", run_command},
    {"generate", kGenerate, "prun generate PLAN|FOLDER [options]", "continue a text with the model that was trained",
     generate_command},
    {"check", kCheck, "prun check PLAN [options]", "verify it and predict memory and traffic; starts no rank",
     check_command},
    {"sim", kSim, "prun sim PLAN --cluster FILE", "predict a step on a cluster that you need not have; starts no rank",
     sim_command},
    {"calibrate", kCalibrate, "prun calibrate", "measure this machine and write the cluster file that describes it",
     calibrate_command},
    {"tune", kTune, "prun tune PLAN --cluster FILE", "find the plan's fastest arguments on a cluster; starts no rank",
     tune_command},
    {"dump", kDump, "prun dump PLAN [options]", "print the program that the ranks would run", dump_command},
    {"plans", kPlans, "prun plans", "list the plans that come with prun", plans_command},
    {"plugins", kPlugins, "prun plugins", "list the transports; --explain: which auto takes, and why", plugins_command},
    {"doctor", kDoctor, "prun doctor [options]",
     "try what a run needs here, or between --nnodes hosts: OK, WARN or FAIL, with the fix", doctor_command},
    {"conform", kConform, "prun conform PLUGIN [ITEM]",
     "try a transport or a device with the suite for all of them; ITEM:CASE: one case of an item", conform_command},
    {"ckpt", kCkpt, "prun ckpt VERB DIR ..",
     "checkpoints: ls, show, verify, diff, reshard; export to and import from Hugging Face", ckpt_command},
    {"runs", kRuns, "prun runs [DIR]", "list the runs that --runs or --checkpoint kept (default: those in runs)",
     runs_command},
    {"status", kStatus, "prun status [RUN]", "the jobs of yours that run here, and what their ranks are at",
     status_command},
    {"explain", kExplain, "prun explain [RUN]",
     "what each rank of a run that failed or hangs is at, and who holds the others up", explain_command},
    {"clean", kClean, "prun clean [DIR ..]", "remove what jobs that crashed have left", clean_command},
    {"draw", kDraw, "prun draw WHAT ..", "draw a plan, a trace, rows of metrics or runs: a page, a picture or text",
     draw_command},
    {"diff", kDiff, "prun diff PLAN [PLAN]", "what two plans, or one at two settings, hold, send and do, side by side",
     diff_command},
    {"bench", kBench, "prun bench OP[,OP] [..]", "collectives by size over a transport, in nccl-tests' columns",
     bench_command},
    {"init", kInit, "prun init [FOLDER]", "begin a folder of plans: a first plan, and .luarc.json for the editor",
     init_command},
    {"version", kVersion, "prun version", "version, commit, ABIs and devices of this prun", version_command},
    {"completion", kCompletion, "prun completion SHELL", "what makes bash, zsh or fish complete prun's words",
     completion_command},
    {"man", kMan, "prun man [COMMAND]", "the manual page of prun or of a command; --out FOLDER: all of them",
     man_command},
};

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : kCommands)
    if (command.bit != kRun) names.emplace_back(command.name);
  return names;
}

const Command& find_command(std::string_view name) {
  return *std::find_if(std::begin(kCommands), std::end(kCommands), [&](const Command& c) { return c.name == name; });
}

void read_setting(std::map<std::string, std::string>& settings, const std::string& option, const std::string& text) {
  size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw usage_error(fmt::format("{} wants NAME=VALUE, not '{}'", option, text));
  settings[text.substr(0, equals)] = text.substr(equals + 1);
}

// "cuda:2": from its third device on.
void read_device(Options& options, const std::string& text) {
  options.device_given = true;
  const size_t colon = text.find(':');
  options.job.device = text.substr(0, colon);
  if (const std::string hint = value_here("--device", options.job.device); !hint.empty()) {
    const std::vector<std::string> names = device_names();
    if (std::find(names.begin(), names.end(), options.job.device) == names.end())
      throw usage_error(fmt::format("no device '{}'{}", options.job.device, hint));
  }
  if (colon != std::string::npos)
    options.job.first_device = whole_number("--device NAME:FIRST", text.substr(colon + 1), 0);
}

const char* json_help(Commands command) {
  switch (command) {
    case kRun:
      return "at the end one JSON object on standard output: exit_code, steps, loss, seconds; the rest goes to stderr";
    case kBench:
      return "one JSON object a row";
    case kGenerate:
      return "one JSON object at the end: prompt, ids, log_probabilities, text";
    case kConform:
      return "one JSON object an item: item, result, text, case";
    default:
      return "one JSON object on one line";
  }
}

void read_dump_format(Options& options, const std::string& text) {
  const std::vector<std::string> formats = {"text", "json", "chakra"};
  if (std::find(formats.begin(), formats.end(), text) == formats.end())
    throw usage_error(fmt::format("--format is {}, not '{}'{}", join(formats, ", "), text, if_near(text, formats)));
  options.json = options.json || text == "json";
  options.chakra = text == "chakra";
}

constexpr unsigned kPlanCommands = kRun | kCheck | kDump | kSim, kSpans = kRun | kPlugins | kBench;
constexpr unsigned kRecords = kPlanCommands | kGenerate | kDraw | kDiff | kTune;  // a plan, with its arguments

void define_plan_options(Definer& define, Commands command, Options& o) {
  define.whole(kRecords | kPlugins | kDoctor, "--nproc", "N", o.job.launch.nproc, 1, "ranks on this node (default 1)");
  define.parsed(
      kRecords, "--set", "NAME=VALUE", [&o](const std::string& text) { read_setting(o.job.settings, "--set", text); },
      "an argument of the plan; `prun PLAN --help` lists them", true);
  define.text(kRun | kDoctor, "--cluster", "FILE", o.sim.cluster,
              "a cluster file whose `nodes:` name hosts: they are the nodes, and this machine is one of them");
  define_simulation_options(define, command, o.sim);
  define.text(kRun | kGenerate | kBench | kDoctor, "--transport", "NAME", o.job.world.transport,
              command == kBench ? "auto (default), a plugin's name (`prun plugins`) or the path of a .so"
                                : "auto (default), shm, socket, another plugin, or two: inside a host+between");
  define.text(kSpans | kConform, "--transport-options", "K=V,..", o.job.world.transport_options,
              "options of the transport; NAME.K=V for one of two");
  define.text(kBench, "--algorithm", "NAME", o.job.world.algorithm,
              "the core's algorithm of this name (default: by size and ranks)");
  if (command == kBench) define_bench_options(define, o.bench);
  if (command == kGenerate) define_generation_options(define, o.job.generation);
  define.parsed(
      kRecords | kDoctor | kConform, "--device", "NAME[:FIRST]",
      [&o](const std::string& text) { read_device(o, text); },
      "what computes (default cpu): a rank each from the host's device FIRST on");
  define.text(kPlanCommands | kGenerate | kConform, "--device-options", "K=V,..", o.job.device_options,
              "options of the device");
  define.parsed(
      kRun | kGenerate, "--kernels", "NAME",
      [&o](const std::string& text) { o.job.kernels.asked = check_kernels(text); },
      command == kRun
          ? "kernels of CPUs: any, avx2, avx512, and with +bf16, +pairs, +tiles (default: as the checkpoint, "
            "or the fastest)"
          : "kernels of CPUs: any, avx2, avx512, and with +bf16, +pairs, +tiles (default: the fastest)");
  define.whole(kRun | kDoctor | kBench, "--ranks-per-device", "N", o.job.ranks_per_device, 1,
               "ranks that share a device (default 1)");
  define.parsed(
      kRun | kGenerate | kBench, "--bind", "core|numa|none|auto",
      [&o](const std::string& text) { o.job.bind = check_bind(text); },
      "cores or NUMA nodes of its own for each rank (default auto: NUMA nodes, where there are several)");
  define.flag(kPlanCommands, "--check-finite", o.job.check_finite,
              "end with the op that first makes a NaN or an infinity (slower)");
  define.parsed(
      kPlanCommands, "--non-finite", "stop|skip|rollback",
      [&o](const std::string& text) { o.job.non_finite = check_non_finite(text); },
      "gradients that are NaN or infinite: end as --check-finite; update nothing in that step; or go back to the last "
      "checkpoint and on without those batches");
  define.flag(kRun | kCheck, "--prove", o.job.prove,
              "run it, made small, in this process: it must compute what one rank computes");
  define.whole(kPlanCommands, "--check-replicas", "K", o.job.check_replicas, 0,
               "every K steps compare what ranks hold alike (default 100; 0: never)");
  define.flag(kPlanCommands, "--every-microbatch", o.job.every_microbatch,
              "list and prove each microbatch of a long schedule, not one period of what repeats");
  define.whole(kPlanCommands | kGenerate, "--pad-vocabulary", "N", o.job.pad_vocabulary, 1,
               "store the columns of logits padded to a multiple of N (default: what the device wants; 1: no padding)");
  define.flag(kPlanCommands | kTune, "--time-passes", o.job.time_passes,
              command == kTune ? "print what the search's parts take" : "print what each pass of the compiler takes");
  define.parsed(
      kDump, "--after", "PASS",
      [&o](const std::string& text) {
        check_pass_name(text);
        o.job.dump_after = text;
      },
      "what the compiler has after this pass: graph, schedule or program (--time-passes names all)");
  define.parsed(
      kDump, "--format", "text|json|chakra", [&o](const std::string& text) { read_dump_format(o, text); },
      "chakra: execution traces of a step, PREFIX.RANK.et, that simulators such as ASTRA-sim replay (default: text)");
  define.text(kDump, "--out", "PREFIX", o.traces, "chakra: what the names of the files begin with");
}

void define_output_options(Definer& define, Options& o) {
  define.text(kRun, "--metrics", "FILE", o.job.watch.metrics.path,
              "write one JSON object a step (-: standard output); --resume goes on in it");
  define.flag(kRun, "--overwrite", o.job.watch.metrics.overwrite,
              "replace what --metrics FILE and --checkpoint DIR have of another run");
  define.text(kRun, "--runs", "DIR", o.job.watch.runs,
              "keep plan, arguments, metrics and log of this run in a folder there");
  define.text(kRun | kSim, "--trace", "FILE", o.job.watch.trace, "write a timeline that opens in Perfetto");
  define.parsed(
      kRun, "--trace-steps", "A:B",
      [&o](const std::string& text) { o.job.watch.trace_steps = parse_step_window(text); },
      "of these steps alone, as the screen counts them; A: or :B is open, A is one step (default: from the first on)");
}

void define_checkpoint_options(Definer& define, Commands command, Options& o) {
  define.text(kRun | kDoctor, "--checkpoint", "DIR", o.job.checkpoint.folder,
              command == kDoctor ? "try this folder, too: write, fsync, rename, space, speed"
                                 : "keep what was trained: checkpoints go to this folder");
  define.whole(kPlanCommands, "--checkpoint-every", "K", o.job.checkpoint.every, 1,
               "steps from one checkpoint to the next (default: one at the end)");
  define.whole(kRun, "--checkpoint-keep", "N", o.job.checkpoint.keep, 1,
               "remove all but the newest N (default: keep all)");
  define.flag(kRun, "--checkpoint-strict", o.job.checkpoint.strict,
              "end with 15 where a checkpoint cannot be written (default: go on, and try the next one)");
  define.whole(kRun, "--grace", "SECONDS", o.job.checkpoint.grace_s, 1,
               "after SIGTERM or Ctrl-C, how long a last checkpoint may take; then exit code 75 (default 25)");
  define.text(kRun, "--resume", "auto|PATH", o.job.checkpoint.resume,
              "go on from a checkpoint; auto: the newest whole one in --checkpoint, if any");
  define.flag(kRun, "--new-data", o.job.checkpoint.new_data,
              "--resume: where the data are not those of the checkpoint, begin with their first sample");
  define.whole(kRun, "--max-restarts", "K", o.job.restart.most, 0,
               "begin again from the last checkpoint, at most K times, after a failure that may pass (default 0)");
  define.whole(kRun, "--min-ranks", "M", o.job.restart.min_ranks, 1,
               "go on with fewer ranks, at least M, when restarts are spent or a node stays away");
  define.text(
      kCkpt | kMan, "--out", "FOLDER", o.ckpt.out,
      command == kMan ? "write the pages of all commands there" : "reshard, export, import: the folder to make");
  define.text(kCkpt, "--format", "hf", o.ckpt.format, "export: hf, a folder that transformers loads");
  define.text(kCkpt, "--dtype", "f32|bf16|f16", o.ckpt.dtype, "export: of the weights (default: as they are stored)");
  define.text(kCkpt, "--tokenizer", "FILE|none", o.ckpt.tokenizer,
              "export: the tokenizer.json to copy (default: that beside the token files it was trained on, if any)");
  define.whole(kCkpt, "--ranks", "N", o.ckpt.ranks, 1, "reshard: how many ranks share the files");
  define.whole(kCkpt, "--file-mib", "N", o.ckpt.file_mib, 1, "export: the most of a file, in MiB (default 5000)");
}

void define_node_options(Definer& define, Options& o) {
  define.whole(kSpans | kCheck | kDump | kSim | kTune | kDoctor, "--nnodes", "N", o.job.launch.nnodes, 1,
               "nodes of the job (default 1)");
  define.whole(kRun | kBench | kDoctor, "--node-rank", "I", o.job.launch.node_rank, 0, "which of them this is, from 0");
  define.text(kRun | kBench, "--launcher", "NAME", o.launcher,
              "whose variables tell the place among processes of mpirun, srun, ..: prun, torchrun, openmpi, mpich, "
              "slurm, kubernetes, none (default: who speaks)");
  define.text(kSpans | kDoctor, "--rendezvous", "HOST:PORT", o.job.launch.rendezvous,
              "where node 0 listens; needed with --nnodes");
  define.text(kRun | kBench | kDoctor, "--secret-file", "FILE", o.job.launch.secret_file,
              "shared secret of the nodes (or PRUN_SECRET); needed beyond loopback");
  define.text(kRun | kBench, "--port-range", "A:B", o.job.port_range,
              "ports between hosts, for firewalls: one a rank (default: any free one)");
  define.flag(kRun | kBench | kDoctor, "--encrypt", o.job.world.encrypt,
              "TLS 1.3 between hosts, with the job's secret as its key");
  define.whole(kRun | kBench, "--link-timeout", "SECONDS", o.job.launch.link_timeout_s, 1,
               "how soon a lost host ends the job; an outage of half of it or more is survived (default 5)");
  define.text(kSpans | kDoctor, "--interface", "NAME", o.job.world.network_interface,
              "network interface between hosts, or its address or network (default: to --rendezvous)");
  define.parsed(
      kRun | kGenerate | kConform | kBench | kDoctor, "--timeout", "SECONDS",
      [&o](const std::string& text) {
        o.job.world.deadline_s = o.job.launch.join_timeout_s = whole_number("--timeout", text, 1);
      },
      "how long a collective or a missing rank is waited for (default 60)");
}

void define_options(CLI::App& app, Commands command, Options& o) {
  Definer define(app, command);
  app.set_help_flag();
  app.add_option("operands", o.operands);
  define_plan_options(define, command, o);
  define_output_options(define, o);
  define_checkpoint_options(define, command, o);
  define_node_options(define, o);
  define.parsed(
      kDiff, "--to", "NAME=VALUE", [&o](const std::string& text) { read_setting(o.diff_settings, "--to", text); },
      "an argument that the second has; the same plan where one is named", true);
  if (command == kDraw || command == kDiff) define_draw_options(define, o.draw);
  if (command == kCalibrate) define_calibrate_options(define, o);
  define.flag(kStatus, "--prometheus", o.prometheus, "as Prometheus' text format");
  define.flag(kClean, "--dry-run", o.dry_run, "say what would be removed, and remove nothing");
  define.text(
      kRun, "--chaos", "SPEC", o.job.chaos,
      "bring faults about, to see how the job ends: kill:rank=3@step=7 (stop, delay, reset, flip, enospc, nan, omit)");
  define.flag(kPlugins, "--explain", o.explain, "which transport auto takes for which ranks, and why");
  define.flag(kAllCommands & ~(kCompletion | kMan), "--json", o.json, json_help(command));
  define.flag(kRun, "--quiet,-q", o.job.watch.quiet, "say nothing but what the plan prints, warnings and failures");
  define.flag(kAllCommands, "--verbose,-v", o.verbose, "--log-level info");
  define.parsed(
      kAllCommands, "--log-level", "debug|info|warning|error",
      [&o](const std::string& text) { o.log_level = check_log_level("--log-level", text); },
      "log a line an event on standard error (default warning, or PRUN_LOG)");
  define.flag(kAllCommands, "--help,-h", o.help,
              command == kRun ? "this text; with a plan also its arguments" : "this text");
}

std::vector<std::string> names_of_options(const CLI::App& app) {
  std::vector<std::string> names = {"--version"};  // which parse_options takes
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// Before CLI11 parses, whose message would not say what was meant.
void check_option_names(const std::vector<std::string>& words, const CLI::App& app, const Command& command) {
  for (const std::string& word : words) {
    const bool is_long = word.size() > 2 && word.starts_with("--");
    if (!is_long && (word.size() < 2 || word[0] != '-' || std::isalpha(static_cast<unsigned char>(word[1])) == 0))
      continue;  // "-1" and "-" are values
    const std::string name = word.substr(0, word.find('='));
    const std::vector<std::string> own = names_of_options(app);
    const auto is_own = [&](const std::string& n) { return std::find(own.begin(), own.end(), n) != own.end(); };
    if (is_own(name)) continue;
    std::string dashed = name;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    if (is_own(dashed)) throw usage_error(fmt::format("there is no option {} (here: {})", name, dashed));
    std::vector<std::string> others;
    for (const Command& other : kCommands) {
      CLI::App theirs;
      Options unused;
      define_options(theirs, other.bit, unused);
      if (is_long && theirs.get_option_no_throw(name) != nullptr)
        others.push_back(other.bit == kRun ? "prun PLAN" : fmt::format("prun {}", other.name));
    }
    if (others.empty()) {
      const std::string ours = option_here(name);
      throw usage_error(fmt::format("there is no option {}{}", name, ours.empty() ? did_you_mean(name, own) : ours));
    }
    const bool runs = command.bit == kRun;
    throw usage_error(fmt::format("{} has no option {}, but {} has (`prun {}--help` lists its own)",
                                  runs ? "prun PLAN" : fmt::format("prun {}", command.name), name, join(others, ", "),
                                  runs ? "" : fmt::format("{} ", command.name)));
  }
}

// The first operand becomes the plan, or what is to be tried; the commands without a plan have none.
void read_operands(Options& o, const Command& command) {
  std::vector<std::string>& words = o.operands;
  constexpr unsigned kOperands = kBench | kCkpt | kDiff | kDraw | kRuns | kStatus | kExplain | kClean;
  if ((command.bit & (kOperands | kInit | kVersion | kCompletion | kMan)) != 0) return;
  if (command.bit == kConform) {
    if (o.device_given || words.empty()) return;
  } else if (!words.empty()) {
    // A word before a plan, or one that can be no file, was meant as a command.
    const std::string& first = words[0];
    const bool folder = command.bit == kGenerate && std::filesystem::is_directory(first);
    if (!folder && first.find_first_of("./") == std::string::npos &&
        (words.size() > 1 || !nearest_word(first, command_names()).empty()))
      throw usage_error(fmt::format("there is no command '{}'{}", first, did_you_mean(first, command_names())));
    if (command.bit == kDoctor || command.bit == kCalibrate)
      throw usage_error(fmt::format("prun {} takes no plan ('{}'): it looks at this machine", command.name, first));
    if (command.bit == kPlans || command.bit == kPlugins)
      throw usage_error(fmt::format("prun {} takes no plan ('{}'): it lists all", command.name, first));
    if (words.size() > 1) throw usage_error(fmt::format("one plan at a time: '{}' and '{}'", first, words[1]));
  }
  if (words.empty()) return;
  o.job.plan = words[0];
  words.erase(words.begin());
}

// What must hold between options.
void check_together(Options& o, const Command& command) {
  if (int64_t{o.job.launch.nproc} * o.job.launch.nnodes > kMostWhole)
    throw usage_error(fmt::format("--nproc {} on --nnodes {} are more than {} ranks", o.job.launch.nproc,
                                  o.job.launch.nnodes, kMostWhole));
  if ((command.bit & (kRun | kPlugins | kBench | kDoctor)) != 0) check_options(o.job.launch);
  if (command.bit == kConform && o.job.plan.empty() && !o.device_given)
    throw usage_error("which plugin? For example: prun conform shm, or prun conform build/lib/prun/plugins/mine.so");
  if ((command.bit & (kRun | kCheck | kDump | kSim | kTune | kGenerate)) != 0 && o.job.plan.empty())
    throw usage_error("which plan? For example: prun plans/zero3.lua --nproc 8");
  if (command.bit == kRun) {
    check_checkpoint_options(o.job.checkpoint);
    check_metrics_options(o.job.watch.metrics, o.job.checkpoint.folder);
    check_restart_options(o.job);
    check_non_finite_options(o.job);
    o.job.checkpoint.overwrite = o.job.watch.metrics.overwrite;
    o.job.watch.metrics.resumes = !o.job.checkpoint.resume.empty();
  }
  if (command.bit == kDump && (o.json || o.chakra) && !o.job.dump_after.empty())
    throw usage_error(fmt::format("--after prints text: not with --{}", o.json ? "json" : "format chakra"));
  if (command.bit == kDump && o.chakra == o.traces.empty())
    throw usage_error("--format chakra and --out PREFIX go together: files PREFIX.0.et and on, one a rank");
  if (command.bit == kRun && o.job.watch.trace_steps.given && o.job.watch.trace.empty())
    throw usage_error("--trace-steps needs --trace FILE, where the timeline goes");
  if ((command.bit & (kSim | kTune | kDiff)) != 0 && o.sim.cluster.empty()) o.sim.cluster = existing_calibration();
  if (command.bit == kSim) check_simulation_options(o);
  if ((command.bit & (kSim | kTune)) != 0 && o.sim.cluster.empty())
    throw usage_error(
        "on which cluster? For example: --cluster plans/clusters/dgx-a100.yaml, or `prun calibrate` for this machine");
  if (command.bit == kGenerate) check_generation_options(o.job.generation, o.job.plan);
  if (command.bit == kBench) finish_bench(o);
  if (command.bit == kDraw) check_draw_options(o);
}

std::vector<OptionText> option_texts(Commands command) {
  CLI::App app;
  Options unused;
  define_options(app, command, unused);
  std::vector<OptionText> texts;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    OptionText text{{}, option->get_type_size_max() == 0 ? "" : option->get_type_name(), option->get_description()};
    for (const std::string& name : option->get_lnames()) text.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) text.names.push_back("-" + name);
    texts.push_back(std::move(text));
  }
  return texts;
}

// What concerns links between hosts is an option of the transports that make them.
void pass_to_transports(Options& o) {
  const auto pass = [&](const std::string& option) {
    std::string& all = o.job.world.transport_options;
    all = option + (all.empty() ? "" : "," + all);  // what the user gives to one of them goes before it
  };
  o.job.launch.encrypt = o.job.world.encrypt;
  if (o.job.launch.link_timeout_s != LaunchOptions().link_timeout_s)
    pass(fmt::format("socket.link_timeout={}", o.job.launch.link_timeout_s));
  if (o.job.port_range.empty()) return;
  int first = 0, last = 0;
  if (const size_t colon = o.job.port_range.find(':'); colon != std::string::npos) {
    first = whole_number("--port-range", o.job.port_range.substr(0, colon), 1);
    last = whole_number("--port-range", o.job.port_range.substr(colon + 1), 1);
  }
  if (first < 1 || last < first || last > 65535)
    throw usage_error(fmt::format("--port-range wants FIRST:LAST, two ports up to 65535, not '{}'", o.job.port_range));
  pass("socket.ports=" + o.job.port_range);
  setenv("UCX_TCP_PORT_RANGE", fmt::format("{}-{}", first, last).c_str(), 0);
}

}  // namespace

int device_of(const Options& options, int local_rank) {
  return options.job.first_device + local_rank / options.job.ranks_per_device;
}

std::vector<CommandText> command_texts() {
  std::vector<CommandText> texts;
  for (const Command& command : kCommands)
    texts.push_back({command.name, command.usage, command.help, option_texts(command.bit)});
  return texts;
}

std::string usage(const Options& options) {
  const auto line = [](const Command& command) { return fmt::format("{:<27} {}\n", command.usage, command.help); };
  const Command& command = find_command(options.command);
  std::string text = line(command);
  if (command.bit == kRun) {
    for (const Command& other : kCommands)
      if (&other != &command) text += line(other);
    text += "`prun COMMAND --help` lists the options of a command.\n";
  }
  if (command.bit == kBench) text += "\n" + bench_operations();
  text += command.bit == kRun ? "\noptions of prun PLAN:\n" : "\noptions:\n";
  for (const OptionText& option : option_texts(command.bit))
    text += fmt::format("  {:<27} {}\n", fmt::format("{} {}", join(option.names, ", "), option.unit), option.help);
  return command.bit == kBench ? text + bench_terms() : text;
}

Options parse_options(const std::vector<std::string>& given) {
  std::vector<std::string> words = given;
  Options options;
  if (const std::vector<std::string> names = command_names();
      !words.empty() && std::find(names.begin(), names.end(), words[0]) != names.end()) {
    options.command = words[0];
    words.erase(words.begin());
  }
  if (const auto version = std::find(words.begin(), words.end(), "--version"); version != words.end()) {
    options.command = "version";
    const bool json = std::find(words.begin(), words.end(), "--json") != words.end();
    words = json ? std::vector<std::string>{"--json"} : std::vector<std::string>{};
  }
  const Command& command = find_command(options.command);
  CLI::App app;
  define_options(app, command.bit, options);
  check_option_names(words, app, command);
  std::reverse(words.begin(), words.end());
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    throw usage_error(error.what());
  }
  options.job.watch.words = given;
  options.job.watch.json = options.json;
  if (command.bit == kRun) options.job.purpose = Purpose::train;
  if (command.bit == kGenerate) options.job.purpose = Purpose::generate;
  if (command.bit == kCheck) options.job.purpose = Purpose::check;
  const auto is_given = [&](const char* name) {
    return app.get_option_no_throw(name) != nullptr && app.count(name) > 0;
  };
  if ((command.bit & (kRun | kDoctor)) != 0 && is_given("--cluster") && !options.help)
    take_place_among_hosts(options, {is_given("--nnodes"), is_given("--node-rank"), is_given("--nproc")});
  else if ((command.bit & (kRun | kBench)) != 0 && !is_given("--nnodes") && !is_given("--node-rank") && !options.help)
    take_place_of_launcher(options);
  if (options.job.launch.host_ranks > 0 && !is_given("--nproc")) options.bench.nproc = {1};
  pass_to_transports(options);
  if (!options.help || !options.operands.empty()) read_operands(options, command);
  if (!options.help) check_together(options, command);
  return options;
}

void find_installation(Options& options) {
  namespace fs = std::filesystem;
  const fs::path program = fs::read_symlink("/proc/self/exe");
  options.program = program.string();
  // An installed prun finds lua/ in ../share/prun, one in a build folder at the top of the source tree.
  for (const char* candidate : {"../share/prun/lua", "../../../lua"}) {
    fs::path lua = program.parent_path() / candidate;
    if (options.job.lua_dir.empty() && fs::exists(lua / "prun" / "init.lua"))
      options.job.lua_dir = fs::canonical(lua).string();
  }
  if (options.job.lua_dir.empty())
    throw usage_error(
        fmt::format("{} has no lua/ folder beside it: it was moved without its share/prun", options.program));
  options.job.world.plugin_dirs = plugin_directories(options.program);
}

int run_chosen_command(Options& options) {
  if (const std::string hint = value_here("--transport", options.job.world.transport); !hint.empty()) {
    const std::vector<PluginFile> files = find_plugins(options.job.world.plugin_dirs);
    if (std::none_of(files.begin(), files.end(),
                     [&](const auto& file) { return file.name == options.job.world.transport; }))
      throw usage_error(fmt::format("unknown transport '{}'{}", options.job.world.transport, hint));
  }
  return find_command(options.command).run(options);
}

}  // namespace prun
