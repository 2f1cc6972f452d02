// Two questions: what is there at all, then every device at once, each in a child: making a context takes a second.
#include "device_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "device/device.h"

namespace prun {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(20);

// What a child writes into its pipe, once.
struct Answer {
  char version[32] = {}, summary[160] = {}, problem[480] = {};
  int mem_kind = PRUN_MEM_HOST;
  prun_device_probe probe{};
  prun_device_info info{};
  prun_health_report health{};
};

template <size_t N>
void write_text(char (&to)[N], const char* text) {
  std::snprintf(to, N, "%s", text != nullptr ? text : "");
}

class Child {
 public:
  Child(const std::string& device, const std::function<void(const prun_device&, Answer&)>& ask);
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}
  ~Child();
  Answer answer(Clock::time_point deadline);

 private:
  std::string ending();  // of a child that has answered nothing

  pid_t pid_ = -1;
  int pipe_ = -1;
};

[[noreturn]] void be_child(int pipe, const std::string& device,
                           const std::function<void(const prun_device&, Answer&)>& ask) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  Answer answer;
  try {
    const std::unique_ptr<Device> opened = open_device(device);
    if (opened->table() != nullptr) {
      write_text(answer.version, opened->table()->version);
      write_text(answer.summary, opened->table()->summary);
      answer.mem_kind = opened->table()->mem_kind;
      ask(*opened->table(), answer);
    }
  } catch (const std::exception& error) {
    write_text(answer.problem, error.what());
  }
  const char* bytes = reinterpret_cast<const char*>(&answer);
  for (size_t sent = 0; sent < sizeof answer;) {
    const ssize_t n = write(pipe, bytes + sent, sizeof answer - sent);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  _exit(0);
}

Child::Child(const std::string& device, const std::function<void(const prun_device&, Answer&)>& ask) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  std::fflush(nullptr);
  pid_ = fork();
  if (pid_ == 0) be_child(ends[1], device, ask);
  close(ends[1]);
  pipe_ = ends[0];
}

Child::~Child() {
  if (pipe_ >= 0) close(pipe_);
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string Child::ending() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFSIGNALED(status))
    return fmt::format("it crashed with signal {} ({}) when it was asked what is there", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  return fmt::format("it ended with exit code {} when it was asked what is there", WEXITSTATUS(status));
}

Answer Child::answer(Clock::time_point deadline) {
  Answer answer;
  size_t have = 0;
  while (pid_ > 0 && have < sizeof answer) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd readable{pipe_, POLLIN, 0};
    const int ready = left > 0 ? poll(&readable, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      write_text(answer.problem,
                 fmt::format("it did not say within {} s what is there (is its driver stuck? nvidia-smi, dmesg)",
                             kPatience.count())
                     .c_str());
      return answer;
    }
    const ssize_t n = read(pipe_, reinterpret_cast<char*>(&answer) + have, sizeof answer - have);
    if (n <= 0) break;
    have += static_cast<size_t>(n);
  }
  if (have == sizeof answer) return answer;
  answer = {};
  write_text(answer.problem, pid_ > 0 ? ending().c_str() : "no process could be started to ask it");
  return answer;
}

FoundDevice found(int index, const Answer& answer) { return {index, answer.info, answer.problem, answer.health}; }

// What a device knows of itself; one that cannot say it has nothing to say.
void examine(const prun_device& table, int index, prun_health_report& report) {
  const void* extension = table.ext != nullptr ? table.ext(PRUN_HEALTH) : nullptr;
  if (extension == nullptr) return;
  report.size = sizeof report;
  prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
  if (static_cast<const prun_health*>(extension)->examine(index, &report, &result) != PRUN_OK) report = {};
  report.facts[sizeof report.facts - 1] = report.advice[sizeof report.advice - 1] = '\0';
}

void describe(const std::string& name, const std::set<int>& indexes, DeviceReport& report) {
  std::vector<Child> children;
  for (const int index : indexes)
    children.emplace_back(name, [index](const prun_device& table, Answer& answer) {
      prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
      answer.info.size = sizeof answer.info;
      examine(table, index, answer.health);
      if (table.describe(index, &answer.info, &result) != PRUN_OK) write_text(answer.problem, result.message);
    });
  const Clock::time_point deadline = Clock::now() + kPatience;
  auto child = children.begin();
  for (const int index : indexes) report.devices.push_back(found(index, (child++)->answer(deadline)));
}

DeviceReport ask(const std::string& name) {
  Child child(name, [](const prun_device& table, Answer& answer) {
    answer.probe.size = sizeof answer.probe;
    if (table.probe(&answer.probe) != PRUN_OK) write_text(answer.problem, "it could not say what is there");
  });
  const Answer answer = child.answer(Clock::now() + kPatience);
  DeviceReport report{name, answer.version, answer.summary, answer.mem_kind, answer.probe, answer.problem, {}};
  if (report.problem.empty()) report.problem = answer.probe.problem;
  return report;
}

}  // namespace

double peak_flops(const DeviceReport& report) {
  double sum = 0;
  for (const FoundDevice& device : report.devices) {
    if (device.info.peak_flops_bf16 <= 0) return 0;
    sum += device.info.peak_flops_bf16;
  }
  return sum;
}

DeviceReport probe_device(const std::string& name, const std::vector<int>& devices) {
  DeviceReport report = ask(name);
  std::set<int> existing;
  for (const int index : devices)
    if (index < report.probe.devices) existing.insert(index);
  if (report.problem.empty()) describe(name, existing, report);
  return report;
}

DeviceReport probe_device(const std::string& name) {
  DeviceReport report = ask(name);
  std::set<int> all;
  for (int index = 0; index < report.probe.devices; ++index) all.insert(index);
  if (report.problem.empty()) describe(name, all, report);
  return report;
}

}  // namespace prun
