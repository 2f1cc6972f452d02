// One table of options for all commands that take a plan; CLI11 parses, the messages are ours.
#include "options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

const std::vector<std::string> kCommands = {"dump", "check", "plans", "plugins", "doctor", "conform", "bench"};

const OptionRow kRows[] = {
    {"--nproc", "N", "ranks on this node (default 1)"},
    {"--set", "NAME=VALUE", "an argument of the plan; `prun PLAN --help` lists them"},
    {"--transport", "NAME", "auto (default), shm, socket, another plugin, or two: inside a host+between"},
    {"--transport-options", "K=V,..", "options of the transport; NAME.K=V for one of two"},
    {"--device", "NAME[:FIRST]", "what computes (default cpu): a rank each from the host's device FIRST on"},
    {"--device-options", "K=V,..", "options of the device"},
    {"--ranks-per-device", "N", "ranks that share a device (default 1)"},
    {"--check-finite", "", "end with the op that first makes a NaN or an infinity (slower)"},
    {"--metrics", "FILE", "write one JSON object a step"},
    {"--trace", "FILE", "write a timeline that opens in Perfetto"},
    {"--nnodes", "N", "nodes of the job (default 1)"},
    {"--node-rank", "I", "which of them this is, from 0"},
    {"--rendezvous", "HOST:PORT", "where node 0 listens; needed with --nnodes"},
    {"--secret-file", "FILE", "shared secret of the nodes (or PRUN_SECRET); needed beyond loopback"},
    {"--interface", "NAME", "network interface between hosts, or its address or network (default: to --rendezvous)"},
    {"--timeout", "SECONDS", "how long a collective or a missing rank is waited for (default 60)"},
    {"--json", "", "check, plans, plugins, doctor: as JSON"},
    {"--explain", "", "plugins: which transport auto takes for which ranks, and why"},
    {"--help", "", "this text; with a plan also its arguments"},
};

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const OptionRow& row : kRows) names.push_back(row.name);
  return names;
}

void settle(Options& options, const std::vector<std::string>& settings) {
  for (const std::string& text : settings) {
    size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      throw usage_error(fmt::format("--set wants NAME=VALUE, not '{}'", text));
    options.settings[text.substr(0, equals)] = text.substr(equals + 1);
  }
}

bool is_any_of(const std::string& word, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// "cuda:2": from its third device on.
void split_device(Options& options) {
  const size_t colon = options.device.find(':');
  if (colon == std::string::npos) return;
  options.first_device = whole_number("--device NAME:FIRST", options.device.substr(colon + 1), 0);
  options.device.resize(colon);
}

void finish(Options& options) {
  if (options.nnodes > 1 && options.rendezvous.empty())
    throw usage_error("--nnodes needs --rendezvous HOST:PORT, the address where node 0 listens");
  if (options.node_rank >= options.nnodes)
    throw usage_error(fmt::format("--node-rank {} is not below --nnodes {}", options.node_rank, options.nnodes));
  if (options.plan.empty() && options.command == "conform" && !options.device_given && !options.help)
    throw usage_error("which plugin? For example: prun conform shm, or prun conform build/lib/prun/plugins/mine.so");
  if (options.plan.empty() && !is_any_of(options.command, {"plans", "plugins", "doctor", "conform"}) && !options.help)
    throw usage_error("which plan? For example: prun plans/zero3.lua --nproc 8");
}

}  // namespace

int device_of(const Options& options, int local_rank) {
  return options.first_device + local_rank / options.ranks_per_device;
}

int whole_number(const std::string& option, const std::string& text, int least) {
  char* end = nullptr;
  long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > 1000000)
    throw usage_error(fmt::format("{} wants a whole number of at least {}, not '{}'", option, least, text));
  return static_cast<int>(value);
}

void check_option_names(const std::vector<std::string>& args, const std::vector<std::string>& names) {
  for (const std::string& arg : args) {
    if (arg.size() < 3 || arg.compare(0, 2, "--") != 0) continue;
    std::string name = arg.substr(0, arg.find('='));
    if (name == "--version" || std::find(names.begin(), names.end(), name) != names.end()) continue;
    throw usage_error(fmt::format("there is no option {}{}", name, did_you_mean(name, names)));
  }
}

std::string option_line(const OptionRow& row) {
  return fmt::format("  {:<28}{}\n", fmt::format("{} {}", row.name, row.value), row.help);
}

std::string read_secret(const std::string& secret_file) {
  if (secret_file.empty()) {
    const char* secret = std::getenv("PRUN_SECRET");
    return secret ? secret : "";
  }
  std::ifstream file(secret_file);
  std::string secret;
  if (!std::getline(file, secret) || secret.empty()) throw usage_error("no secret in " + secret_file);
  return secret;
}

std::string usage() {
  std::string text =
      "prun PLAN [options]         train: run the plan on --nproc ranks\n"
      "prun check PLAN [options]   verify it and predict memory and traffic; starts no rank\n"
      "prun dump PLAN [options]    print the program that the ranks would run\n"
      "prun plans                  list the plans that come with prun\n"
      "prun plugins                list the transports; --explain: which auto takes, and why\n"
      "prun doctor [--device NAME] what prun has here: memory, limits, transports, devices, and what to do about "
      "problems\n"
      "prun conform PLUGIN [ITEM]  try a transport or a device, by name or path, with the suite for all of them; "
      "--device NAME\n"
      "                            where both are called so; ops:gelu: one case of an item\n"
      "prun bench OP [options]     collectives over a transport, in nccl-tests' columns; `prun bench "
      "--help`\n\noptions:\n";
  for (const OptionRow& row : kRows) text += option_line(row);
  return text;
}

Options parse_options(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  Options options;
  options.command = "run";
  if (!args.empty() && std::find(kCommands.begin(), kCommands.end(), args[0]) != kCommands.end()) {
    options.command = args[0];
    args.erase(args.begin());
  }
  if (options.command == "bench") {  // has options of its own
    options.items = args;
    return options;
  }
  check_option_names(args, option_names());
  CLI::App app;
  app.set_help_flag();
  std::string nproc = "1", nnodes = "1", node_rank = "0", timeout = "60", ranks_per_device = "1";
  std::vector<std::string> settings, plans;
  bool version = false;
  app.add_option("plan", plans);
  app.add_option("--nproc", nproc);
  app.add_option("--nnodes", nnodes);
  app.add_option("--node-rank", node_rank);
  app.add_option("--rendezvous", options.rendezvous);
  app.add_option("--secret-file", options.secret_file);
  app.add_option("--interface", options.network_interface);
  app.add_option("--transport", options.transport);
  app.add_option("--transport-options", options.transport_options);
  app.add_option("--device", options.device);
  app.add_option("--device-options", options.device_options);
  app.add_option("--ranks-per-device", ranks_per_device);
  app.add_option("--set", settings)->expected(1)->take_all()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--metrics", options.metrics);
  app.add_option("--trace", options.trace);
  app.add_option("--timeout", timeout);
  app.add_flag("--check-finite", options.check_finite);
  app.add_flag("--json", options.json);
  app.add_flag("--explain", options.explain);
  app.add_flag("--help,-h", options.help);
  app.add_flag("--version", version);
  try {
    std::reverse(args.begin(), args.end());
    app.parse(args);
  } catch (const CLI::ParseError& error) {
    throw usage_error(error.what());
  }
  if (version) {
    fmt::print("prun {}\n", PRUN_VERSION);
    std::exit(0);
  }
  if (options.command == "conform") {  // the plugin, unless --device names it, then items
    const size_t first = app.count("--device") > 0 ? 0 : std::min<size_t>(1, plans.size());
    options.items.assign(plans.begin() + static_cast<std::ptrdiff_t>(first), plans.end());
    plans.resize(first);
  }
  // A word before a plan, or one that can be no file, was meant as a command.
  if (!plans.empty() && options.command != "conform" && plans[0].find_first_of("./") == std::string::npos &&
      (plans.size() > 1 || !nearest_word(plans[0], kCommands).empty()))
    throw usage_error(fmt::format("there is no command '{}'{}", plans[0], did_you_mean(plans[0], kCommands)));
  if (!plans.empty() && options.command == "doctor")
    throw usage_error(fmt::format("prun doctor takes no plan ('{}'): it looks at this machine", plans[0]));
  if (plans.size() > 1) throw usage_error(fmt::format("one plan at a time: '{}' and '{}'", plans[0], plans[1]));
  if (!plans.empty()) options.plan = plans[0];
  options.nproc = whole_number("--nproc", nproc, 1);
  options.nnodes = whole_number("--nnodes", nnodes, 1);
  options.node_rank = whole_number("--node-rank", node_rank, 0);
  options.timeout_s = whole_number("--timeout", timeout, 1);
  options.ranks_per_device = whole_number("--ranks-per-device", ranks_per_device, 1);
  options.device_given = app.count("--device") > 0;
  split_device(options);
  settle(options, settings);
  finish(options);
  return options;
}

}  // namespace prun
