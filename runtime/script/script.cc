// The launcher's side: finds the plan, forks the child, reads its one reply within a deadline.
#include "script/script.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/child_process.h"
#include "base/error.h"
#include "base/text.h"
#include "script/child.h"
#include "script/other_languages.h"
#include "script/script_server.h"

namespace prun {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> plans_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".lua") names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Returns " (did you mean 'plans/zero3.lua'?)": a file of that folder, otherwise one of the installation's plans.
std::string likely_plan(const std::string& typed, const fs::path& installed) {
  fs::path path = typed;
  const std::string name = (path.extension() == ".lua" ? path.stem() : path.filename()).string();
  for (const fs::path& folder : {path.parent_path(), installed}) {
    std::vector<std::string> names = plans_in(folder.empty() ? "." : folder);
    for (std::string& each : names) each = fs::path(each).stem().string();  // the suffix makes any two names alike
    const std::string near = nearest_word(name, names);
    if (near.empty()) continue;
    fs::path shown = folder == installed ? fs::path("plans") : folder;
    return fmt::format(" (did you mean '{}.lua'?)", (shown / near).string());
  }
  return fmt::format(" (plans of prun: {})", join(plans_in(installed), ", "));
}

// Returns what to do with a folder in place of a plan.
std::string folder_text(const fs::path& folder) {
  std::error_code error;
  bool checkpoints = fs::exists(folder / "index.json", error);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    checkpoints = checkpoints || fs::exists(entry.path() / "index.json", error);
  return checkpoints ? "a folder of checkpoints: prun ckpt ls, show or verify reads it"
                     : "no file but a folder; name a plan in it";
}

// Rejects weights and other large files, of which the script's process would read all.
void refuse_binary(const std::string& plan_path, const std::string& file) {
  std::string begin(4096, '\n');
  std::ifstream(file, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (begin.find('\0') != std::string::npos && !begin.starts_with(LUA_SIGNATURE))
    throw not_lua(plan_path, foreign_kind(plan_path, begin));
}

// Returns the description of a plan: the first sentence of its leading comment.
std::string first_sentence(const std::string& file) {
  std::ifstream lines(file);
  std::string line, text;
  while (std::getline(lines, line)) {
    if (text.empty() && (line.starts_with("#!") || line.empty())) continue;
    if (!line.starts_with("--") || line.starts_with("--[[")) break;
    size_t begin = line.find_first_not_of("- ");
    if (begin == std::string::npos && !text.empty()) break;
    if (begin != std::string::npos) text += (text.empty() ? "" : " ") + line.substr(begin);
  }
  size_t end = text.find(". ");
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

Error parse_error(const std::string& reply) {
  size_t end = reply.find('\n');
  PRUN_CHECK(end != std::string::npos, fmt::format("an error reply of {} bytes", reply.size()));
  int code = 0, line = 0, at = 0;
  std::string head = reply.substr(1, end - 1);
  PRUN_CHECK(std::sscanf(head.c_str(), "%d %d %n", &code, &line, &at) == 2, head);
  return Error(static_cast<Exit>(code), reply.substr(end + 1), Site{head.substr(at), line});
}

// The plans that have printed. A process that is forked later inherits them.
std::set<std::string>& printed_plans() {
  static std::set<std::string> plans;
  return plans;
}

std::optional<ScriptEnd> run_alone(const ScriptOptions& options, const std::string& plan_file,
                                   ChildProcess::Clock::time_point deadline) {
  ChildProcess child([&](int pipe) {
    ScriptState state(options);
    run_script_child(state, plan_file, pipe);
  });
  ScriptEnd end;
  if (!child.read_reply(deadline, end.reply)) return std::nullopt;
  end.status = child.wait();
  return end;
}

Error death(const ScriptOptions& options, int status) {
  const int signal_number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (signal_number == SIGKILL || signal_number == SIGXCPU)
    return Error(Exit::script_limit,
                 fmt::format("{}: the script was killed at its limit of processor time or memory", options.plan_path));
  return plan_error(fmt::format("{}: the process that ran the script died ({}); this is a bug of prun",
                                options.plan_path, signal_number != 0 ? strsignal(signal_number) : "no reply"));
}

}  // namespace

std::string find_plan(const std::string& plan_path, const std::string& lua_dir) {
  if (plan_path == "-" || plan_path.starts_with("/dev/stdin") || plan_path.starts_with("/dev/fd/"))
    throw usage_error(fmt::format(
        "'{}' is no plan: save the plan to a file, because prun opens it several times and messages name its lines",
        plan_path));
  fs::path typed = plan_path, root = fs::path(lua_dir) / "..";
  std::vector<fs::path> places = {typed};
  if (typed.is_relative()) {
    places.push_back(root / typed);
    places.push_back(root / "plans" / typed);
  }
  for (const fs::path& place : places) {
    std::error_code error;
    if (fs::is_regular_file(place, error)) {
      refuse_binary(plan_path, place.string());
      return place.string();
    }
    if (fs::is_directory(place, error)) throw usage_error(fmt::format("'{}' is {}", plan_path, folder_text(place)));
    if (fs::exists(place, error)) throw usage_error(fmt::format("'{}' is no file", plan_path));
  }
  if (const std::string kind = foreign_kind(plan_path, ""); !kind.empty()) throw not_lua(plan_path, kind);
  throw usage_error(fmt::format("no plan '{}'{}", plan_path, likely_plan(plan_path, root / "plans")));
}

void print_again() { printed_plans().clear(); }

ScriptResult run_script(const ScriptOptions& given) {
  ScriptOptions options = given;
  options.prints = given.prints && !given.help && printed_plans().insert(given.plan_path).second;
  std::string plan_file = find_plan(options.plan_path, options.lua_dir);
  ScriptResult result;
  result.description = first_sentence(plan_file);
  // Processor time is the actual limit; this one covers a stopped child or an overloaded machine.
  const int wall_seconds = static_cast<int>(20 + 6 * options.cpu_seconds);
  const auto deadline = ChildProcess::Clock::now() + std::chrono::seconds(wall_seconds);
  std::optional<ScriptEnd> end;
  ScriptServer* server = ScriptServer::current();
  if (server == nullptr || !server->run(options, plan_file, deadline, end))
    end = run_alone(options, plan_file, deadline);
  if (!end)
    throw Error(Exit::script_limit,
                fmt::format("{}: no plan after {} of wall time", options.plan_path, human_seconds(wall_seconds)));
  const std::string& reply = end->reply;
  if (reply.empty() || !WIFEXITED(end->status)) throw death(options, end->status);
  result.processor_seconds = end->processor_seconds;
  if (reply[0] == kReplyError) throw parse_error(reply);
  if (reply[0] == kReplyHelp) {
    const nlohmann::json help = nlohmann::json::from_cbor(reply.begin() + 1, reply.end());
    result.is_plan = help.at("is_plan").get<bool>();
    for (const nlohmann::json& one : help.at("arguments"))
      result.arguments.push_back({one.at("name"), one.at("kind"), one.at("initial"), one.at("help"), one.at("tune")});
    return result;
  }
  uint64_t size = 0;
  PRUN_CHECK(reply.size() > sizeof size, fmt::format("a reply of {} bytes", reply.size()));
  std::memcpy(&size, reply.data() + 1, sizeof size);
  const auto modules = reply.begin() + 1 + sizeof size, plan = modules + static_cast<std::ptrdiff_t>(size);
  result.modules = nlohmann::json::from_cbor(modules, plan).get<std::map<std::string, std::string>>();
  result.plan_cbor.assign(plan, reply.end());
  return result;
}

}  // namespace prun
