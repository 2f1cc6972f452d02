// prun: the launcher and its commands. Errors end here, as one message and an exit code.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/hf/architecture.h"
#include "command_line.h"
#include "complete.h"
#include "help.h"
#include "job/build.h"
#include "job/secret.h"
#include "launch/launcher_process.h"
#include "standard_streams.h"

namespace prun {
namespace {

// Limits spinning of OpenMP threads, which by default spin for milliseconds and waste most of a loaded machine's time.
// The library reads the limit when it is loaded, so this process executes itself again.
void limit_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "2000", 1);  // a few us
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  execv(program.c_str(), argv);  // returns only on failure; in that case kernels spin longer
}

void print_plan_help(const CommandRow& row, Command& command) {
  const JobSpec& job = *command.job();
  const ScriptResult result = describe_plan(job);
  const int columns = terminal_columns();
  if (!result.description.empty()) fmt::print("{}\n", help_paragraph(result.description, columns));
  std::vector<HelpRow> rows;
  for (const PlanArgument& argument : result.arguments)
    rows.push_back({fmt::format("  {}={}", argument.name, argument.initial), argument.help});
  fmt::print("arguments of {} (--set name=value):\n{}\n{}", job.plan, help_rows(rows, columns), usage(row, command));
}

int dispatch(const std::vector<std::string>& words) {
  const ParsedCommand parsed = parse_words(words);
  Command& command = *parsed.command;
  start_log(parsed.log_level);
  JobSpec* job = command.job();
  if (parsed.help && (job == nullptr || job->plan.empty())) {
    fmt::print("{}", usage(*parsed.row, command));
    return 0;
  }
  const Installation installed = find_installation();
  checkpoint::set_descriptions_folder(installed.lua_dir + "/prun/architectures");
  if (job != nullptr) {
    job->lua_dir = installed.lua_dir;
    job->world.plugin_dirs = installed.plugin_dirs;
    job->watch.words = command.line().words;
    job->watch.json = command.line().json;
  }
  if (parsed.help) {
    print_plan_help(*parsed.row, command);
    return 0;
  }
  command.settle();
  return command.run();
}

// With --json the error is also printed to standard output, for its readers.
void tell(const std::string& message, int code, const std::vector<std::string>& words) {
  fmt::print(stderr, "prun: {}\n", message);
  if (std::find(words.begin(), words.end(), "--json") == words.end()) return;
  const nlohmann::ordered_json all = {{"exit_code", code}, {"error", message}};
  fmt::print("{}\n", all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace
}  // namespace prun

int main(int argc, char** argv) {
  prun::open_closed_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails with EFBIG, which is reported like a full disk
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (argc > 1 && words[0] == "__complete") return prun::complete_command({words.begin() + 1, words.end()});
  prun::limit_spinning(argv);
  prun::hide_secret();
  prun::lost_launcher();  // remembers the launcher of this process as long as it lives
  try {
    return prun::code_with_output(prun::dispatch(words));
  } catch (const std::exception& caught) {
    const auto* failed = dynamic_cast<const std::system_error*>(&caught);
    if (std::ferror(stdout) != 0 && failed != nullptr)
      return prun::code_with_output(0, failed->code().value());  // fmt::print could not write
    const prun::Error error = prun::error_of(caught);
    // An error in the launcher without a code of its own is treated as one that the user can fix.
    const prun::Exit code = error.code() == prun::Exit::rank_crash ? prun::Exit::usage : error.code();
    prun::tell(prun::printable(error.what()), static_cast<int>(code), words);
    return static_cast<int>(code);
  }
}
