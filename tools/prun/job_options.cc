#include "job_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "comm/transport/plugin.h"
#include "elsewhere.h"
#include "job/adapters.h"
#include "job/non_finite.h"
#include "kernels/devices.h"
#include "launch/environments.h"

namespace prun {
namespace {

// Parses a device: "cuda:2" starts at its third device.
void read_device(JobSpec& job, const std::string& text) {
  const size_t colon = text.find(':');
  job.device = text.substr(0, colon);
  if (const std::string hint = value_here("--device", job.device); !hint.empty()) {
    const std::vector<std::string> names = device_names();
    if (std::find(names.begin(), names.end(), job.device) == names.end())
      throw usage_error(fmt::format("no device '{}'{}", job.device, hint));
  }
  if (colon != std::string::npos) job.first_device = whole_number("--device NAME:FIRST", text.substr(colon + 1), 0);
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const CommandRow& row : commands())
    if (&row != &commands().front()) names.emplace_back(row.name);
  return names;
}

// Returns whether the word is NAME=VALUE and not a file.
bool is_setting(const std::string& word) {
  const size_t equals = word.find('=');
  if (std::filesystem::exists(word)) return false;
  const auto in_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return equals != 0 && equals != std::string::npos &&
         std::all_of(word.begin(), word.begin() + std::ptrdiff_t(equals), in_name);
}

// Rejects a command of another program, such as `train`, unless it is a file.
void refuse_foreign_command(const std::vector<std::string>& words) {
  const std::string here = command_here(words[0], words.size() > 1 ? words[1] : "PLAN");
  if (!here.empty() && !std::filesystem::exists(words[0]))
    throw usage_error(fmt::format("there is no command '{}' (here: {})", words[0], here));
}

// Rejects a word before a plan, or a word that cannot be a file, as an unknown command.
void refuse_unknown_command(const std::vector<std::string>& words) {
  const std::string& first = words[0];
  if (first.find_first_of("./") != std::string::npos || std::filesystem::is_directory(first)) return;
  if (words.size() > 1 || !nearest_word(first, command_names()).empty())
    throw usage_error(fmt::format("there is no command '{}'{}", first, did_you_mean(first, command_names())));
}

// Returns whether the job has only this node, whatever starts it.
bool is_alone(const CommandLine& line, const LaunchOptions& launch) {
  const auto variable = [](const char* name) -> const char* { return std::getenv(name); };
  return launch.nnodes == 1 && !line.given("--nnodes") && !line.given("--cluster") && !is_described(variable);
}

}  // namespace

void PlanCommand::take_operands(std::vector<std::string>& operands) {
  if (operands.empty()) return;
  refuse_settings(operands, "--set");
  const std::vector<std::string> names = command_names();
  const bool follows_command = std::find(names.begin(), names.end(), line_.words.front()) != names.end();
  if (!follows_command) refuse_foreign_command(operands);
  refuse_unknown_command(operands);
  if (operands.size() > 1)
    throw usage_error(fmt::format("one plan at a time: '{}' and '{}'", operands[0], operands[1]));
  job_.plan = operands[0];
  operands.clear();
}

void PlanCommand::require_plan() const {
  if (!job_.plan.empty()) return;
  const std::vector<std::string> names = command_names();
  const bool named = !line_.words.empty() && std::ranges::find(names, line_.words[0]) != names.end();
  throw usage_error(
      fmt::format("which plan? For example: prun {}plans/zero3.lua --nproc 8", named ? line_.words[0] + " " : ""));
}

void refuse_settings(const std::vector<std::string>& operands, const char* option) {
  for (const std::string& word : operands)
    if (is_setting(word))
      throw usage_error(fmt::format("'{}' is no plan; an argument of the plan is set with {} {}", word, option, word));
}

void refuse_operands(const char* command, const std::vector<std::string>& operands, const char* why) {
  if (operands.empty()) return;
  refuse_unknown_command(operands);
  throw usage_error(fmt::format("prun {} takes no plan ('{}'): {}", command, operands[0], why));
}

std::string one_operand(const char* command, const std::vector<std::string>& operands, const char* what) {
  if (operands.size() > 1)
    throw usage_error(fmt::format("prun {} takes one {}, not {}", command, what, operands.size()));
  return operands.empty() ? "" : operands[0];
}

namespace option {

void plugin_options(OptionTable& table, const char* name, std::string& value, const char* help) {
  const auto read = [name, &value](const std::string& text) {
    std::map<std::string, std::string> settings;
    for (const std::string& each : split(text, ','))
      if (each.find('=') - 1 < each.size()) read_setting(settings, name, each);  // neither missing nor first
    value = text;
  };
  table.parsed(name, "K=V,..", read, help);
}

void nproc(OptionTable& table, JobSpec& job) {
  table.whole("--nproc", "N", job.launch.nproc, 1, "ranks on this node (default 1)");
}

void set(OptionTable& table, JobSpec& job) {
  table.parsed(
      "--set", "NAME=VALUE", [&job](const std::string& text) { read_setting(job.settings, "--set", text); },
      "an argument of the plan; `prun PLAN --help` lists them", true);
}

void transport(OptionTable& table, JobSpec& job) {
  table.text("--transport", "NAME", job.world.transport,
             "auto (default), shm, socket, another plugin, or two: inside a host+between");
}

void transport_options(OptionTable& table, JobSpec& job) {
  plugin_options(table, "--transport-options", job.world.transport_options,
                 "options of the transport; NAME.K=V for one of two");
}

void device(OptionTable& table, JobSpec& job) {
  table.parsed(
      "--device", "NAME[:FIRST]", [&job](const std::string& text) { read_device(job, text); },
      "what computes (default cpu): a rank each from the host's device FIRST on");
}

void device_options(OptionTable& table, JobSpec& job) {
  plugin_options(table, "--device-options", job.device_options, "options of the device");
}

void kernels(OptionTable& table, JobSpec& job, const char* help) {
  table.parsed(
      "--kernels", "NAME", [&job](const std::string& text) { job.kernels.asked = check_kernels(text); }, help);
}

void ranks_per_device(OptionTable& table, JobSpec& job) {
  table.whole("--ranks-per-device", "N", job.ranks_per_device, 1, "ranks that share a device (default 1)");
}

void bind(OptionTable& table, JobSpec& job) {
  table.parsed(
      "--bind", "core|numa|none|auto", [&job](const std::string& text) { job.bind = check_bind(text); },
      "cores or NUMA nodes of its own for each rank (default auto: NUMA nodes, where there are several)");
}

void prove(OptionTable& table, JobSpec& job) {
  table.flag("--prove", job.prove, "run a reduced plan in this process and compare it with one rank");
}

void pad_vocabulary(OptionTable& table, JobSpec& job) {
  table.whole("--pad-vocabulary", "N", job.pad_vocabulary, 1,
              "store the columns of logits padded to a multiple of N (default: what the device wants; 1: no padding)");
}

void time_passes(OptionTable& table, JobSpec& job, const char* help) {
  table.flag("--time-passes", job.time_passes, help);
}

void trace(OptionTable& table, JobSpec& job) {
  table.text("--trace", "FILE", job.watch.trace, "write a timeline that opens in Perfetto");
}

void checkpoint_every(OptionTable& table, JobSpec& job) {
  table.whole("--checkpoint-every", "K", job.checkpoint.every, 1,
              "steps from one checkpoint to the next (default: one at the end)");
}

void base(OptionTable& table, JobSpec& job) {
  table.parsed(
      "--base", "DIR",
      [&job](const std::string& text) {
        job.checkpoint.base = text;
        settle_base_option(job.checkpoint.base);
      },
      "the weights below adapters (default: those of the plan's prun.init.from, or where the checkpoint had them)");
}

void ema(OptionTable& table, JobSpec& job) {
  table.flag("--ema", job.checkpoint.ema,
             "the running averages of the weights (ema of the plan's optimizer) instead of the weights");
}

void nnodes(OptionTable& table, JobSpec& job) {
  table.whole("--nnodes", "N", job.launch.nnodes, 1, "nodes of the job (default 1)");
}

void node_rank(OptionTable& table, JobSpec& job) {
  table.whole("--node-rank", "I", job.launch.node_rank, 0, "which of them this is, from 0");
}

void launcher(OptionTable& table, std::string& name) {
  table.text("--launcher", "NAME", name,
             "whose variables tell the place among processes of mpirun, srun, ..: prun, torchrun, openmpi, mpich, "
             "slurm, kubernetes, none (default: the one whose variables are set)");
}

void rendezvous(OptionTable& table, JobSpec& job) {
  table.text("--rendezvous", "HOST:PORT", job.launch.rendezvous, "where node 0 listens; needed with --nnodes");
}

void secret_file(OptionTable& table, JobSpec& job) {
  table.text("--secret-file", "FILE", job.launch.secret_file,
             "shared secret of the nodes (or PRUN_SECRET); needed beyond loopback");
}

void port_range(OptionTable& table, JobSpec& job) {
  table.text("--port-range", "A:B", job.port_range,
             "ports between hosts, for firewalls: one a rank (default: any free one)");
}

void encrypt(OptionTable& table, JobSpec& job) {
  table.flag("--encrypt", job.world.encrypt, "TLS 1.3 between hosts, with the job's secret as its key");
}

void link_timeout(OptionTable& table, JobSpec& job) {
  table.whole("--link-timeout", "SECONDS", job.launch.link_timeout_s, 1,
              "how soon a lost host ends the job; an outage of half of it or more is survived (default 5)");
}

void interface(OptionTable& table, JobSpec& job) {
  table.text("--interface", "NAME", job.world.network_interface,
             "network interface between hosts, or its address or network (default: to --rendezvous)");
}

void timeout(OptionTable& table, JobSpec& job) {
  table.parsed(
      "--timeout", "SECONDS",
      [&job](const std::string& text) {
        job.world.deadline_s = job.launch.join_timeout_s = whole_number("--timeout", text, 1);
      },
      "how long a collective or a missing rank is waited for (default 60)");
}

}  // namespace option

void declare_plan(OptionTable& table, JobSpec& job) {
  table.group("plan");
  option::nproc(table, job);
  option::set(table, job);
}

void declare_compilation(OptionTable& table, JobSpec& job) {
  table.group("checks");
  table.flag("--check-finite", job.check_finite, "end with the op that first makes a NaN or an infinity (slower)");
  table.parsed(
      "--non-finite", "stop|skip|rollback",
      [&job](const std::string& text) { job.non_finite = check_non_finite(text); },
      "gradients that are NaN or infinite: end as --check-finite; update nothing in that step; or go back to the last "
      "checkpoint and on without those batches");
  table.whole("--check-replicas", "K", job.check_replicas, 0,
              "every K steps compare the replicated state of ranks (default 100; 0: never)");
  table.group("compiler");
  table.flag("--every-microbatch", job.every_microbatch,
             "list and prove each microbatch of a long schedule, not one period of its steady state");
  option::pad_vocabulary(table, job);
  option::time_passes(table, job);
}

void read_setting(std::map<std::string, std::string>& settings, const std::string& option, const std::string& text) {
  size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw usage_error(fmt::format("{} must be NAME=VALUE, not '{}'", option, text));
  const std::string name = text.substr(0, equals), value = text.substr(equals + 1);
  const auto [given, is_first] = settings.emplace(name, value);
  if (!is_first)
    throw usage_error(fmt::format("{} {} is given twice: {} and {}; keep one", option, name, given->second, value));
}

void check_ranks(const JobSpec& job) {
  if (int64_t{job.launch.nproc} * job.launch.nnodes > kMostWhole)
    throw usage_error(fmt::format("--nproc {} on --nnodes {} are more than {} ranks", job.launch.nproc,
                                  job.launch.nnodes, kMostWhole));
}

void require_nodes(const CommandLine& line, const LaunchOptions& launch, const std::string& launcher) {
  for (const char* option : {"--nnodes", "--node-rank", "--cluster"})
    if (!launcher.empty() && launcher != "none" && line.given(option))
      throw usage_error(
          fmt::format("--launcher {} and {} exclude each other: both give this node's place", launcher, option));
  if (!is_alone(line, launch)) return;
  for (const char* option : {"--rendezvous", "--node-rank"})
    if (line.given(option))
      throw usage_error(
          fmt::format("{} needs --nnodes N, the number of nodes; without it the job is this node alone", option));
}

void warn_of_link_options(const CommandLine& line, const LaunchOptions& launch) {
  if (!is_alone(line, launch) || line.given("--transport")) return;  // some transports use TCP on one host, too
  for (const char* option : {"--port-range", "--encrypt", "--link-timeout"})
    if (line.given(option))
      fmt::print(stderr, "prun: {} has no effect: it is for links between nodes (--nnodes), and there is one\n",
                 option);
}

void check_transport_hint(const JobSpec& job) {
  const std::string hint = value_here("--transport", job.world.transport);
  if (hint.empty()) return;
  const std::vector<PluginFile> files = find_plugins(job.world.plugin_dirs);
  if (std::none_of(files.begin(), files.end(), [&](const auto& file) { return file.name == job.world.transport; }))
    throw usage_error(fmt::format("unknown transport '{}'{}", job.world.transport, hint));
}

void pass_to_transports(JobSpec& job) {
  const auto pass = [&](const std::string& option) {
    std::string& all = job.world.transport_options;
    all = option + (all.empty() ? "" : "," + all);  // the user's transport options take precedence
  };
  job.launch.encrypt = job.world.encrypt;
  if (job.launch.link_timeout_s != LaunchOptions().link_timeout_s)
    pass(fmt::format("socket.link_timeout={}", job.launch.link_timeout_s));
  if (job.port_range.empty()) return;
  int first = 0, last = 0;
  if (const size_t colon = job.port_range.find(':'); colon != std::string::npos) {
    first = whole_number("--port-range", job.port_range.substr(0, colon), 1);
    last = whole_number("--port-range", job.port_range.substr(colon + 1), 1);
  }
  if (first < 1 || last < first || last > 65535)
    throw usage_error(fmt::format("--port-range must be FIRST:LAST, two ports up to 65535, not '{}'", job.port_range));
  pass("socket.ports=" + job.port_range);
  setenv("UCX_TCP_PORT_RANGE", fmt::format("{}-{}", first, last).c_str(), 0);
}

}  // namespace prun
