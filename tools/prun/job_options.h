// Options common to several commands, each declared once, and their checks.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "command.h"
#include "job/job_spec.h"

namespace prun {

// A command with one plan as its operand.
class PlanCommand : public Command {
 public:
  void take_operands(std::vector<std::string>& operands) override;
  JobSpec* job() override { return &job_; }

 protected:
  void require_plan() const;  // throws usage_error
  JobSpec job_;
};

// Throws usage_error for an operand NAME=VALUE, which belongs after `option`.
void refuse_settings(const std::vector<std::string>& operands, const char* option);
// Throws usage_error for operands of a command without operands: `why` completes "prun doctor takes no plan ('x'): ".
void refuse_operands(const char* command, const std::vector<std::string>& operands, const char* why);
// Returns the operand of a command that accepts at most one, or "". `what` is "run" or "folder".
std::string one_operand(const char* command, const std::vector<std::string>& operands, const char* what);

namespace option {

// A plugin's options K=V,..; throws usage_error for a key that is given twice. Plugins check the rest.
void plugin_options(OptionTable& table, const char* name, std::string& value, const char* help);
void nproc(OptionTable& table, JobSpec& job);
void set(OptionTable& table, JobSpec& job);
void transport(OptionTable& table, JobSpec& job);
void transport_options(OptionTable& table, JobSpec& job);
void device(OptionTable& table, JobSpec& job);
void device_options(OptionTable& table, JobSpec& job);
void kernels(OptionTable& table, JobSpec& job, const char* help);
void ranks_per_device(OptionTable& table, JobSpec& job);
void bind(OptionTable& table, JobSpec& job);
void prove(OptionTable& table, JobSpec& job);
void pad_vocabulary(OptionTable& table, JobSpec& job);
void time_passes(OptionTable& table, JobSpec& job, const char* help = "print what each pass of the compiler takes");
void trace(OptionTable& table, JobSpec& job);
void checkpoint_every(OptionTable& table, JobSpec& job);
void base(OptionTable& table, JobSpec& job);
void ema(OptionTable& table, JobSpec& job);

void nnodes(OptionTable& table, JobSpec& job);
void node_rank(OptionTable& table, JobSpec& job);
void launcher(OptionTable& table, std::string& name);
void rendezvous(OptionTable& table, JobSpec& job);
void secret_file(OptionTable& table, JobSpec& job);
void port_range(OptionTable& table, JobSpec& job);
void encrypt(OptionTable& table, JobSpec& job);
void link_timeout(OptionTable& table, JobSpec& job);
void interface(OptionTable& table, JobSpec& job);
void timeout(OptionTable& table, JobSpec& job);

}  // namespace option

// Groups of options.
void declare_plan(OptionTable& table, JobSpec& job);         // --nproc, --set
void declare_compilation(OptionTable& table, JobSpec& job);  // checks and compiler options of run, check, dump and sim

// Parses NAME=VALUE of --set and --to. Throws usage_error.
void read_setting(std::map<std::string, std::string>& settings, const std::string& option, const std::string& text);

// Throws usage_error for more ranks than prun supports.
void check_ranks(const JobSpec& job);
// Throws usage_error for --rendezvous or --node-rank of a job of one node: without --nnodes N, a cluster file or a
// launcher it would train alone. Also throws usage_error for these options beside a launcher (--launcher).
void require_nodes(const CommandLine& line, const LaunchOptions& launch, const std::string& launcher = "");
// Prints a remark for each option of links between nodes of a job of one node, where it has no effect.
void warn_of_link_options(const CommandLine& line, const LaunchOptions& launch);
// Throws usage_error, with a hint, for a transport that no plugin has and that is another framework's name.
void check_transport_hint(const JobSpec& job);
// Translates options about links between hosts into options of the transports. Throws usage_error.
void pass_to_transports(JobSpec& job);

}  // namespace prun
