// The launcher's side: find the plan, fork the child, read its one reply within a deadline.
//
// The caller must not have threads yet: the child runs on after fork without exec.
#include "script/script.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "script/child.h"

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

// " (did you mean 'plans/zero3.lua'?)": a file of that folder, else one of the installation's plans.
std::string likely_plan(const std::string& typed, const fs::path& installed) {
  fs::path path = typed;
  std::string name = path.filename().string();
  for (const fs::path& folder : {path.parent_path(), installed}) {
    std::vector<std::string> names = plans_in(folder.empty() ? "." : folder);
    std::string near = nearest_word(name, names);
    if (std::find(names.begin(), names.end(), name + ".lua") != names.end()) near = name + ".lua";
    if (near.empty()) continue;
    fs::path shown = folder == installed ? fs::path("plans") : folder;
    return fmt::format(" (did you mean '{}'?)", (shown / near).string());
  }
  return fmt::format(" (plans of prun: {})", join(plans_in(installed), ", "));
}

// Where the plan lies: as typed, else among the plans that lie or are installed beside lua/.
std::string find_plan(const ScriptOptions& options) {
  fs::path typed = options.plan_path, root = fs::path(options.lua_dir) / "..";
  std::vector<fs::path> places = {typed};
  if (typed.is_relative()) {
    places.push_back(root / typed);
    places.push_back(root / "plans" / typed);
  }
  for (const fs::path& place : places) {
    std::error_code error;
    if (fs::is_regular_file(place, error)) return place.string();
    if (fs::exists(place, error))
      throw usage_error(fmt::format("'{}' is no file{}", options.plan_path,
                                    fs::is_directory(place, error) ? " but a folder; name a plan in it" : ""));
  }
  throw usage_error(fmt::format("no plan '{}'{}", options.plan_path, likely_plan(options.plan_path, root / "plans")));
}

// The first sentence of the comment that the plan begins with says what it is.
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

// The child and the read end of its pipe; neither survives this object.
class Child {
 public:
  Child(const ScriptOptions& options, const std::string& plan_file) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw Error(Exit::usage, fmt::format("pipe: {}", strerror(errno)));
    pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      // Of the launcher's descriptors only standard error and the pipe.
      int out = dup2(ends[1], 3);
      close_range(4, ~0U, 0);
      close(0);
      dup2(2, 1);
      signal(SIGINT, SIG_IGN);  // the launcher decides what an interrupt means
      run_script_child(options, plan_file, out);
    }
    close(ends[1]);
    read_end_ = ends[0];
    if (pid_ < 0) {
      close(read_end_);
      throw Error(Exit::usage, fmt::format("fork: {}", strerror(errno)));
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    close(read_end_);
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  // All that the child wrote, or nothing when the deadline has passed.
  bool read_reply(double seconds, std::string& reply) {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    char block[65536];
    for (;;) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      pollfd wait{read_end_, POLLIN, 0};
      if (poll(&wait, 1, static_cast<int>(std::min<int64_t>(left.count(), 1000))) <= 0) continue;
      ssize_t size = read(read_end_, block, sizeof block);
      if (size == 0) return true;
      if (size > 0) reply.append(block, static_cast<size_t>(size));
    }
  }

  int wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int read_end_ = -1;
};

Error parse_error(const std::string& reply) {
  size_t end = reply.find('\n');
  PRUN_CHECK(end != std::string::npos, fmt::format("an error reply of {} bytes", reply.size()));
  int code = 0, line = 0, at = 0;
  std::string head = reply.substr(1, end - 1);
  PRUN_CHECK(std::sscanf(head.c_str(), "%d %d %n", &code, &line, &at) == 2, head);
  return Error(static_cast<Exit>(code), reply.substr(end + 1), Site{head.substr(static_cast<size_t>(at)), line});
}

}  // namespace

ScriptResult run_script(const ScriptOptions& options) {
  std::string plan_file = find_plan(options);
  ScriptResult result;
  result.description = first_sentence(plan_file);
  Child child(options, plan_file);
  std::string reply;
  // Processor time is the limit that counts; this one is for a child that is stopped, or a machine that is crowded.
  double wall_seconds = 20 + 6 * options.cpu_seconds;
  if (!child.read_reply(wall_seconds, reply))
    throw Error(Exit::script_limit,
                fmt::format("{}: no plan after {} of wall time", options.plan_path, human_seconds(wall_seconds)));
  int status = child.wait();
  if (reply.empty() || !WIFEXITED(status)) {
    int signal_number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (signal_number == SIGKILL || signal_number == SIGXCPU)
      throw Error(Exit::script_limit,
                  fmt::format("{}: the script was killed at its limit of processor time or memory", options.plan_path));
    throw plan_error(fmt::format("{}: the process that ran the script died ({}); this is a bug of prun",
                                 options.plan_path, signal_number != 0 ? strsignal(signal_number) : "no reply"));
  }
  if (reply[0] == kReplyError) throw parse_error(reply);
  if (reply[0] == kReplyHelp) {
    const nlohmann::json help = nlohmann::json::from_cbor(reply.begin() + 1, reply.end());
    result.is_plan = help.at("is_plan").get<bool>();
    for (const nlohmann::json& one : help.at("arguments"))
      result.arguments.push_back({one.at("name"), one.at("kind"), one.at("initial"), one.at("help")});
    return result;
  }
  result.plan_cbor = reply.substr(1);
  return result;
}

}  // namespace prun
