// Probes twice: first for the list of devices, then all of them concurrently, each in its own child, because creating a
// context takes a second.
#include "job/device_probe.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "base/child_process.h"
#include "base/error.h"
#include "kernels/devices.h"

namespace prun {
namespace {

using Clock = ChildProcess::Clock;
constexpr auto kPatience = std::chrono::seconds(20);

// The reply that a child writes into its pipe, once.
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

using Ask = std::function<void(const prun_device&, Answer&)>;

// Runs in the child.
[[noreturn]] void answer_into(int pipe, const std::string& device, const Ask& ask) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  Answer answer;
  try {
    const std::unique_ptr<Device> opened = open_device(device);
    answer.mem_kind = opened->memory_kind();
    if (const prun_device* table = opened->queue()) {
      write_text(answer.version, table->version);
      write_text(answer.summary, table->summary);
      ask(*table, answer);
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

// Starts a child that answers `ask`; nullopt if it cannot start.
std::optional<ChildProcess> start_asking(const std::string& device, const Ask& ask) {
  try {
    return ChildProcess([&](int pipe) { answer_into(pipe, device, ask); });
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string ending(ChildProcess& child) {
  const int status = child.wait();
  if (WIFSIGNALED(status))
    return fmt::format("it crashed with signal {} ({}) while it listed its devices", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  return fmt::format("it ended with exit code {} while it listed its devices", WEXITSTATUS(status));
}

Answer answer_of(std::optional<ChildProcess>& child, Clock::time_point deadline) {
  Answer answer;
  std::string reply;
  std::string problem;
  if (!child)
    problem = "no process could be started to ask it";
  else if (!child->read_reply(deadline, reply, sizeof answer))
    problem =
        fmt::format("it did not list its devices within {} s (is its driver stuck? see dmesg)", kPatience.count());
  else if (reply.size() < sizeof answer)
    problem = ending(*child);
  else
    std::memcpy(&answer, reply.data(), sizeof answer);
  if (!problem.empty()) write_text(answer.problem, problem.c_str());
  return answer;
}

FoundDevice found(int index, const Answer& answer) { return {index, answer.info, answer.problem, answer.health}; }

// Fills the health report; it remains empty for a device without that extension.
void examine(const prun_device& table, int index, prun_health_report& report) {
  const void* extension = table.ext != nullptr ? table.ext(PRUN_HEALTH) : nullptr;
  if (extension == nullptr) return;
  report.size = sizeof report;
  prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
  if (static_cast<const prun_health*>(extension)->examine(index, &report, &result) != PRUN_OK) report = {};
  report.facts[sizeof report.facts - 1] = report.advice[sizeof report.advice - 1] = '\0';
}

void describe(const std::string& name, const std::set<int>& indexes, DeviceReport& report) {
  std::vector<std::optional<ChildProcess>> children;
  for (const int index : indexes)
    children.push_back(start_asking(name, [index](const prun_device& table, Answer& answer) {
      prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
      answer.info.size = sizeof answer.info;
      examine(table, index, answer.health);
      if (table.describe(index, &answer.info, &result) != PRUN_OK) write_text(answer.problem, result.message);
    }));
  const Clock::time_point deadline = Clock::now() + kPatience;
  auto child = children.begin();
  for (const int index : indexes) report.devices.push_back(found(index, answer_of(*child++, deadline)));
}

DeviceReport ask(const std::string& name) {
  std::optional<ChildProcess> child = start_asking(name, [](const prun_device& table, Answer& answer) {
    answer.probe.size = sizeof answer.probe;
    if (table.probe(&answer.probe) != PRUN_OK) write_text(answer.problem, "it could not list its devices");
  });
  const Answer answer = answer_of(child, Clock::now() + kPatience);
  DeviceReport report{name, answer.version, answer.summary, answer.mem_kind, answer.probe, answer.problem, {}};
  if (report.problem.empty()) report.problem = answer.probe.problem;
  return report;
}

}  // namespace

const FoundDevice* DeviceReport::find(int index) const {
  for (const FoundDevice& device : devices)
    if (device.index == index) return &device;
  return nullptr;
}

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
