#include "job/device_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "device/plugin_device.h"
#include "exec/queue_memory.h"
#include "job/build.h"
#include "kernels/devices.h"
#include "verify/verify.h"

namespace prun {
namespace {

std::string device_word(const JobSpec& spec, int index) { return fmt::format("{}:{}", spec.device, index); }

// Returns "cuda:0", "cuda:0 and cuda:1" or "cuda:0 to cuda:7".
std::string range_of(const JobSpec& spec, int devices) {
  if (devices == 1) return device_word(spec, 0);
  return fmt::format("{} {} {}", device_word(spec, 0), devices == 2 ? "and" : "to", device_word(spec, devices - 1));
}

// Returns " (CUDA_VISIBLE_DEVICES=0,1)" if set.
std::string visible_text() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES={})", visible);
}

std::vector<int> devices_of_ranks(const JobSpec& spec) {
  std::vector<int> devices;
  for (int rank = 0; rank < spec.launch.nproc; ++rank) devices.push_back(spec.device_of(rank));
  return devices;
}

void require_enough(const JobSpec& spec, int devices) {
  const int last = spec.device_of(spec.launch.nproc - 1);
  if (last < devices) return;
  const std::string there =
      fmt::format("here {} {}{}", devices == 1 ? "is" : "are", range_of(spec, devices), visible_text());
  if (spec.first_device >= devices)
    throw usage_error(fmt::format("there is no device {}: {}", device_word(spec, spec.first_device), there));
  const int room = devices - spec.first_device;
  throw usage_error(fmt::format(
      "--nproc {} on --device {} needs {} devices{}, {}. To share them: --ranks-per-device {}; "
      "ranks that share a device talk through host memory, or for tests over NCCL (plugins/nccl/README.md, \"Ranks on "
      "one GPU\")",
      spec.launch.nproc, device_word(spec, spec.first_device), last - spec.first_device + 1,
      spec.ranks_per_device == 1 ? ", one a rank" : "", there, (spec.launch.nproc + room - 1) / room));
}

// Returns advice in terms of the plan that shrinks the largest part of a rank's memory.
std::string advice(const Program& program) {
  const auto bytes = [&](Role role) { return program.role_bytes[static_cast<int>(role)]; };
  const int64_t state = bytes(Role::param) + bytes(Role::grad) + bytes(Role::optimizer);
  const int64_t work = bytes(Role::activation) + bytes(Role::gathered) + bytes(Role::reduce) + bytes(Role::workspace);
  return work > state ? "half the batch, twice the `micro`, or prun.recompute make it less"
                      : "prun.zero3 divides parameters, gradients and optimizer state among the ranks";
}

// Returns "--nproc N would fit: ..." if sharding the state over ranks on all remaining devices makes each fit into
// `bytes`, otherwise other advice. Compiles the plan again.
std::string what_would_fit(const JobSpec& spec, const DeviceReport& report, int64_t bytes, const Program& program) {
  const int room = (report.probe.devices - spec.first_device) * spec.ranks_per_device;
  JobSpec wider = spec;
  while (2 * wider.launch.nproc <= room) wider.launch.nproc *= 2;
  if (wider.launch.nproc == spec.launch.nproc) return advice(program);
  try {
    int64_t needed = 0;
    for (const Program& each : build_job(wider, wider.launch.nproc * wider.launch.nnodes).classes)
      needed = std::max(needed, needed_on_device(each));
    if (needed * spec.ranks_per_device <= bytes)
      return fmt::format("--nproc {} would fit: {} a rank", wider.launch.nproc, human_bytes(needed));
  } catch (const Error&) {
    // The plan does not run on so many ranks.
  }
  return advice(program);
}

}  // namespace

int64_t needed_on_device(const Program& program) {
  constexpr int64_t kTables = int64_t{2} << 20;  // for kernels; CUDA's allocation granularity
  return program.arena_bytes + kStepSlots * PinnedLayout(program, true).first + kTables;
}

DeviceReport check_devices(const JobSpec& spec) {
  const std::vector<DevicePluginFile> plugins = find_device_plugins();
  if (std::none_of(plugins.begin(), plugins.end(),
                   [&](const DevicePluginFile& file) { return file.name == spec.device; })) {
    open_device(spec.device);  // a built-in one; throws if there is none
    const char* given = !spec.device_options.empty() ? "--device-options"
                        : spec.ranks_per_device > 1  ? "--ranks-per-device"
                        : spec.first_device > 0      ? "number behind its name"
                                                     : nullptr;
    if (given != nullptr)
      throw usage_error(fmt::format("--device {} computes on the host: it takes no {}", spec.device, given));
    return {};
  }
  const DeviceReport report = probe_device(spec.device, devices_of_ranks(spec));
  require_devices(spec, report);
  return report.mem_kind == PRUN_MEM_HOST ? DeviceReport{} : report;
}

void require_devices(const JobSpec& spec, const DeviceReport& report) {
  if (!report.problem.empty()) throw usage_error(fmt::format("--device {}: {}", spec.device, report.problem));
  if (report.mem_kind == PRUN_MEM_HOST) return;
  require_enough(spec, report.probe.devices);
  for (const int index : devices_of_ranks(spec)) {
    const FoundDevice& device = *report.find(index);
    if (!device.problem.empty())
      throw usage_error(fmt::format("--device {}: {}", device_word(spec, index), device.problem));
    if (spec.ranks_per_device > 1 && device.health.exclusive != 0)
      throw usage_error(
          fmt::format("--ranks-per-device {}: {} takes one process at a time (its compute mode is exclusive; "
                      "sudo nvidia-smi -c 0)",
                      spec.ranks_per_device, device_word(spec, index)));
  }
}

void check_device_memory(const JobSpec& spec, const Job& job, const DeviceReport& report) {
  if (report.devices.empty()) return;
  std::map<int, std::vector<const Program*>> programs;  // by device
  for (int rank = 0; rank < spec.launch.nproc; ++rank)
    programs[spec.device_of(rank)].push_back(&job.program(spec.launch.node_rank * spec.launch.nproc + rank));
  for (const auto& [index, of_ranks] : programs) {
    const prun_device_info& info = report.find(index)->info;
    const int64_t free = static_cast<int64_t>(info.free_bytes);
    // The free bytes were measured with one context open; every rank opens its own.
    const int64_t contexts = static_cast<int64_t>((of_ranks.size() - 1) * report.find(index)->health.context_bytes);
    const int64_t needed = std::accumulate(of_ranks.begin(), of_ranks.end(), int64_t{0},
                                           [](int64_t sum, const Program* p) { return sum + needed_on_device(*p); }) +
                           contexts;
    if (needed <= free) continue;
    const Program& largest =
        **std::max_element(of_ranks.begin(), of_ranks.end(),
                           [](const Program* a, const Program* b) { return a->arena_bytes < b->arena_bytes; });
    const std::string who = of_ranks.size() == 1 ? "its rank needs" : fmt::format("its {} ranks need", of_ranks.size());
    const std::string unshared =
        of_ranks.size() > 1 && largest.arena_bytes <= free ? "; fewer --ranks-per-device, or " : "; ";
    const std::string beside = contexts > 0 ? fmt::format(", {} of it for contexts", human_bytes(contexts)) : "";
    throw Error(Exit::plan,
                fmt::format("{} ({}): {} {}{}{}, {} of its {} are free{}{}{}", device_word(spec, index), info.name, who,
                            human_bytes(needed), largest_roles(largest), beside, human_bytes(free),
                            human_bytes(static_cast<int64_t>(info.total_bytes)), unshared,
                            what_would_fit(spec, report, free - contexts, largest), largest_buffers(largest)));
  }
}

}  // namespace prun
