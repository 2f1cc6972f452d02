// Polled rather than awaited: a pidfd may be refused by a container, and a parent-death signal reports the parent only,
// which may be a wrapper script.
#include "launch/launcher_process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "base/error.h"

namespace prun {
namespace {

struct Stat {
  char state = 'X';
  pid_t parent = 0;
  std::string start;
};

// The name, field 2, may contain any character.
Stat stat_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text, skipped;
  std::getline(file, text);
  Stat stat;
  const size_t name_ends = text.rfind(')');
  if (name_ends == std::string::npos) return stat;
  std::istringstream fields(text.substr(name_ends + 1));
  fields >> stat.state >> stat.parent;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  fields >> stat.start;
  return stat;
}

// Returns false if the environment cannot be read, because the process belongs to another user: it is no wrapper of
// this user's.
bool has_variable(pid_t pid, const std::string& variable) {
  std::ifstream file(fmt::format("/proc/{}/environ", pid));
  for (std::string entry; std::getline(file, entry, '\0');)
    if (entry.starts_with(variable + "=")) return true;
  return false;
}

std::vector<LauncherProcess> launchers_of_this_process() {
  std::vector<LauncherProcess> found;
  for (const auto& [launcher, variable] : launcher_marks()) {
    if (std::getenv(variable) == nullptr) continue;
    if (const std::optional<ProcessId> process = setter_of(variable)) found.push_back({launcher, *process});
  }
  return found;
}

}  // namespace

std::string ProcessId::text() const { return fmt::format("{}@{}", pid, start); }

ProcessId process_id(pid_t pid) { return {pid, stat_of(pid).start}; }

bool is_gone(const ProcessId& process) {
  const Stat now = stat_of(process.pid);
  return now.state == 'X' || now.state == 'Z' || now.start != process.start;
}

std::optional<ProcessId> setter_of(const char* variable) {
  for (pid_t pid = getppid(); pid > 1; pid = stat_of(pid).parent)
    if (!has_variable(pid, variable)) return process_id(pid);
  return std::nullopt;
}

bool is_left_over(const char* variable) {
  const std::optional<ProcessId> setter = setter_of(variable);
  if (!setter) return true;
  std::ifstream file(fmt::format("/proc/{}/comm", setter->pid));
  std::string name;
  std::getline(file, name);
  constexpr std::string_view kShells[] = {"sh", "bash", "dash", "zsh", "fish", "ksh", "csh", "tcsh"};
  return std::ranges::find(kShells, name) != std::end(kShells);
}

std::string lost_launcher() {
  static const std::vector<LauncherProcess> launchers = launchers_of_this_process();
  for (const LauncherProcess& each : launchers)
    if (is_gone(each.process))
      return fmt::format("{} (pid {}), which started this process, is gone", each.launcher, each.process.pid);
  return "";
}

void require_launcher() {
  if (const std::string lost = lost_launcher(); !lost.empty()) throw Error(static_cast<Exit>(128 + SIGKILL), lost);
}

}  // namespace prun
