// A request is one message: the options as CBOR and the write end of the pipe for the reply. The answer is a message
// with the status of the script's process when it has ended.
#include "script/script_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "script/child.h"

namespace prun {
namespace {

using nlohmann::json;

constexpr size_t kMostBytes = 128 << 10;  // upper bound of a request

struct Ending {
  int status = 0;
  double processor_seconds = 0;
};

json as_json(const PlanSizes& sizes) {
  return {sizes.axes, sizes.microbatches, sizes.batch, sizes.alone, sizes.tensor_ranks};
}

PlanSizes sizes_of(const json& sizes) {
  return {sizes.at(0).get<std::map<std::string, int>>(), sizes.at(1), sizes.at(2), sizes.at(3), sizes.at(4)};
}

std::vector<uint8_t> request_of(const ScriptOptions& options, const std::string& plan_file) {
  json all = {{"plan_path", options.plan_path},
              {"plan_file", plan_file},
              {"lua_dir", options.lua_dir},
              {"world", options.world},
              {"settings", options.settings},
              {"help", options.help},
              {"outline", options.outline},
              {"base", options.base},
              {"base_was", options.base_was},
              {"reads_data", options.reads_data},
              {"prints", options.prints},
              {"cpu_seconds", options.cpu_seconds},
              {"memory_bytes", options.memory_bytes}};
  if (options.sizes) all["sizes"] = as_json(*options.sizes);
  for (const PlanSizes& more : options.more_sizes) all["more_sizes"].push_back(as_json(more));
  return json::to_cbor(all);
}

std::pair<ScriptOptions, std::string> read_request(const std::vector<uint8_t>& bytes) {
  const json all = json::from_cbor(bytes);
  ScriptOptions options;
  all.at("plan_path").get_to(options.plan_path);
  all.at("lua_dir").get_to(options.lua_dir);
  all.at("world").get_to(options.world);
  all.at("settings").get_to(options.settings);
  all.at("help").get_to(options.help);
  all.at("outline").get_to(options.outline);
  all.at("base").get_to(options.base);
  all.at("base_was").get_to(options.base_was);
  all.at("reads_data").get_to(options.reads_data);
  all.at("prints").get_to(options.prints);
  all.at("cpu_seconds").get_to(options.cpu_seconds);
  all.at("memory_bytes").get_to(options.memory_bytes);
  if (all.contains("sizes")) options.sizes = sizes_of(all.at("sizes"));
  if (all.contains("more_sizes"))
    for (const json& more : all.at("more_sizes")) options.more_sizes.push_back(sizes_of(more));
  return {std::move(options), all.at("plan_file")};
}

// A message with space for one descriptor.
struct Message {
  Message(void* bytes, size_t size) : part{bytes, size} {
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = room;
    head.msg_controllen = sizeof room;
  }
  iovec part;
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr head = {};
};

bool send_request(int socket, std::vector<uint8_t> bytes, int pipe) {
  Message message(bytes.data(), bytes.size());
  cmsghdr* control = CMSG_FIRSTHDR(&message.head);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof pipe);
  std::memcpy(CMSG_DATA(control), &pipe, sizeof pipe);
  return sendmsg(socket, &message.head, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// Returns the pipe; -1 if the launcher has exited.
int receive_request(int socket, std::vector<uint8_t>& bytes) {
  bytes.resize(kMostBytes);
  Message message(bytes.data(), bytes.size());
  const ssize_t size = recvmsg(socket, &message.head, 0);
  const cmsghdr* control = size > 0 ? CMSG_FIRSTHDR(&message.head) : nullptr;
  if (control == nullptr) return -1;
  bytes.resize(static_cast<size_t>(size));
  int pipe = -1;
  std::memcpy(&pipe, CMSG_DATA(control), sizeof pipe);
  return pipe;
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

[[noreturn]] void serve(const std::string& lua_dir, int from) {
  const int socket = dup2(from, 3);
  close_range(4, ~0U, 0);
  signal(SIGINT, SIG_IGN);
  ScriptOptions none;
  none.lua_dir = lua_dir;
  ScriptState state(none);
  if (state.L == nullptr || !load_words(state)) _exit(1);
  const pid_t server = getpid();
  std::vector<uint8_t> bytes;
  for (int pipe = receive_request(socket, bytes); pipe >= 0; pipe = receive_request(socket, bytes)) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != server) _exit(1);
      std::string plan_file;
      std::tie(state.options, plan_file) = read_request(bytes);
      run_script_child(state, plan_file, pipe);
    }
    close(pipe);
    Ending ending;
    rusage usage{};
    if (child < 0 || wait4(child, &ending.status, 0, &usage) < 0) _exit(1);
    ending.processor_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    if (send(socket, &ending, sizeof ending, MSG_NOSIGNAL) != sizeof ending) break;
  }
  _exit(0);
}

ScriptServer* g_current = nullptr;
pid_t g_owner = 0;

}  // namespace

ScriptServer* ScriptServer::current() { return g_current != nullptr && g_owner == getpid() ? g_current : nullptr; }

ScriptServer::ScriptServer(const std::string& lua_dir) {
  int ends[2];
  if (current() != nullptr || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  socket_ = ends[0];
  process_.emplace([&](int) { serve(lua_dir, ends[1]); });
  close(ends[1]);
  g_current = this;
  g_owner = getpid();
}

ScriptServer::~ScriptServer() { stop(); }

void ScriptServer::stop() {
  if (!process_) return;
  close(socket_);
  process_.reset();
  g_current = nullptr;
}

bool ScriptServer::run(const ScriptOptions& options, const std::string& plan_file,
                       ChildProcess::Clock::time_point deadline, std::optional<ScriptEnd>& end) {
  const std::vector<uint8_t> request = request_of(options, plan_file);
  int ends[2];
  if (request.size() > kMostBytes || pipe2(ends, O_CLOEXEC) != 0) return false;
  const bool asked = send_request(socket_, request, ends[1]);
  close(ends[1]);
  ScriptEnd made;
  const bool whole = asked && read_to_end(ends[0], deadline, made.reply);
  close(ends[0]);
  Ending ending;
  const bool ended = whole && recv(socket_, &ending, sizeof ending, 0) == sizeof ending;
  if (!ended) stop();
  made.status = ending.status;
  made.processor_seconds = ending.processor_seconds;
  if (ended) end = std::move(made);
  return ended || (asked && !whole);
}

}  // namespace prun
