// The command line: `prun PLAN [options]` and `prun COMMAND ...`.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace prun {

struct Options {
  std::string command;             // run, dump, check, plans, plugins, doctor, conform, bench
  std::string plan;                // conform: the plugin, unless --device names it
  std::vector<std::string> items;  // conform: of the suite, none for all; bench: its words
  bool help = false;
  bool json = false;
  bool explain = false;  // plugins
  bool check_finite = false;
  int nproc = 1, nnodes = 1, node_rank = 0;
  std::string rendezvous, secret_file, network_interface;
  std::string transport = "auto", transport_options;
  std::string device = "cpu", device_options;
  bool device_given = false;  // doctor: the one that is asked about
  int first_device = 0, ranks_per_device = 1;
  std::map<std::string, std::string> settings;
  std::string metrics, trace;
  double timeout_s = 60;
};

// Which of the host's devices a rank computes on: those from --device NAME:FIRST on, one a rank or shared.
int device_of(const Options& options, int local_rank);

// Throws usage_error; `--help` without a plan, and --version, print and exit(0).
Options parse_options(int argc, char** argv);
std::string usage();

// A line of the help.
struct OptionRow {
  const char* name;
  const char* value;
  const char* help;
};
std::string option_line(const OptionRow& row);
// Throws usage_error for the first --option that is none of the names.
void check_option_names(const std::vector<std::string>& args, const std::vector<std::string>& names);
int whole_number(const std::string& option, const std::string& text, int least);  // usage_error
// Of --secret-file, else PRUN_SECRET, else "". Throws usage_error.
std::string read_secret(const std::string& secret_file);

}  // namespace prun
