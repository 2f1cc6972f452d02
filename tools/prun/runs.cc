// prun runs [DIR]: lists the runs whose folders are in DIR, the oldest first; DIR may also be the folder of one run.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "job_options.h"
#include "watch/run_folder.h"

namespace prun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool is_locked(const fs::path& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return locked;
}

// Adds the progress of an active run from its rows of metrics.
void add_progress(Json& run, const fs::path& folder) {
  std::ifstream metrics(folder / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("loss") || !row.contains("step")) continue;
    if (!run.contains("loss")) run["loss"]["first"] = row["loss"];
    run["loss"]["last"] = row["loss"];
    run["steps_done"] = row["step"];
  }
}

std::string state_of(int code, const fs::path& folder) {
  if (code == static_cast<int>(Exit::preempted)) return "preempted";
  if (code >= 0) return code == 0 ? "done" : "failed";
  return is_locked(folder / kRunLog) ? "running" : "killed";
}

// Returns whether the fields of the table exist and have the right types.
bool is_run(const Json& run) {
  if (!run.is_object()) return false;
  const auto of = [&](const char* name) { return run.value(name, Json()); };
  const Json words = of("arguments");
  if (!words.is_array() || !of("id").is_string() || !of("format").is_number() || !of("steps").is_number()) return false;
  if (!std::all_of(words.begin(), words.end(), [](const Json& word) { return word.is_string(); })) return false;
  return std::ranges::all_of(std::array{"exit_code", "steps_done", "seconds"},
                             [&](const char* name) { return !run.contains(name) || run[name].is_number(); });
}

Json read_run(const fs::path& folder) {
  const std::string path = (folder / kRunFile).string();
  std::ifstream file(path);
  Json run = Json::parse(file, nullptr, false);
  if (run.is_object() && run.value("format", Json()).is_number() && run["format"] > kRunFormat)
    return {{"path", folder.string()}, {"state", "unreadable"}, {"problem", path + " is of a newer prun"}};
  if (!is_run(run)) return {{"path", folder.string()}, {"state", "unreadable"}, {"problem", path + " is damaged"}};
  const int code = run.value("exit_code", -1);
  run["path"] = folder.string();
  run["state"] = state_of(code, folder);
  if (code < 0) add_progress(run, folder);
  return run;
}

std::vector<fs::path> run_folders(const std::string& where) {
  std::error_code error;
  if (fs::exists(fs::path(where) / kRunFile, error)) return {where};
  std::vector<fs::path> folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(where, error))
    if (fs::exists(entry.path() / kRunFile)) folders.push_back(entry.path());
  if (error)
    throw usage_error(fmt::format("{}: {}; `prun PLAN --runs {}` keeps runs there", where, error.message(), where));
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::string loss_text(const Json& run) {
  if (!run.contains("loss") || !run["loss"].is_object()) return "-";
  const auto number = [&](const char* which) {
    const Json value = run["loss"].value(which, Json());
    return value.is_number() ? fmt::format("{:.4f}", value.get<double>()) : "nan";
  };
  return number("first") + " -> " + number("last");
}

// Returns the arguments after "prun".
std::string command_text(const Json& run) {
  std::string text;
  for (const Json& word : run["arguments"]) text += (text.empty() ? "" : " ") + word.get<std::string>();
  return text;
}

void print_run(const Json& run, size_t width) {
  const std::string id = fs::path(run["path"].get<std::string>()).filename().string();
  if (run["state"] == "unreadable") {
    fmt::print("{:<{}}  {}\n", id, width, run["problem"].get<std::string>());
    return;
  }
  std::string state = run["state"];
  if (state == "failed") state += fmt::format(" ({})", run["exit_code"].get<int>());
  fmt::print("{:<{}}  {:<12} {:>13}  {:<18} {:>9}  {}\n", id, width, state,
             fmt::format("{}/{} steps", run.value("steps_done", 0), run["steps"].get<int64_t>()), loss_text(run),
             run.contains("seconds") ? human_seconds(run["seconds"].get<double>()) : "", command_text(run));
}

class Runs final : public Command {
 public:
  void declare(OptionTable& /*table*/) override {}
  int run() override;
};

int Runs::run() {
  std::string where = one_operand("runs", line_.operands, "folder");
  if (where.empty()) where = kRunsFolder;
  Json runs = Json::array();
  for (const fs::path& folder : run_folders(where)) runs.push_back(read_run(folder));
  if (line_.json) {
    fmt::print("{}\n", Json{{"runs", runs}}.dump());
    return 0;
  }
  size_t width = 0;
  for (const Json& run : runs)
    width = std::max(width, fs::path(run["path"].get<std::string>()).filename().string().size());
  for (const Json& run : runs) print_run(run, width);
  if (runs.empty()) fmt::print("no runs in {}\n", where);
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_runs() { return std::make_unique<Runs>(); }

}  // namespace prun
