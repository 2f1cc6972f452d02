// Cores, memory, shared memory and the script's sandbox of this host.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/cores.h"
#include "base/text.h"
#include "doctor/check.h"
#include "job/build.h"
#include "launch/preflight.h"
#include "plan_paths.h"

namespace prun::doctor {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kGiB = int64_t{1} << 30, kMiB = int64_t{1} << 20;

Finding cores(const DoctorOptions&) {
  const int usable = usable_cores(), all = static_cast<int>(std::thread::hardware_concurrency());
  Finding found{"cores", Status::ok, std::to_string(usable)};
  found.number = usable;
  if (usable < all) found.text = fmt::format("{} of {} (this process's cpuset)", usable, all);
  return found;
}

// Returns the CPUs granted by the cgroup: its quota over its period; 0 = unlimited.
double granted_cpus() {
  std::ifstream second("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (second >> quota >> period) return quota == "max" || period <= 0 ? 0 : std::stod(quota) / period;
  double first_quota = -1;
  std::ifstream first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), its_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  return first >> first_quota && its_period >> period && first_quota > 0 && period > 0 ? first_quota / period : 0;
}

Finding quota(const DoctorOptions&) {
  const double granted = granted_cpus();
  if (granted <= 0) return {"CPU quota", Status::ok, "none"};
  const int usable = usable_cores();
  Finding found{"CPU quota", Status::ok, fmt::format("{:.1f} CPUs by the control group", granted)};
  if (granted < usable) {
    found.status = Status::warn;
    found.fix = fmt::format(
        "threads of {} cores share them and are stopped in turn: give the container whole cores (docker run "
        "--cpuset-cpus), or run with taskset -c 0-{:.0f}",
        usable, std::max(0.0, granted - 1));
  }
  return found;
}

Finding numa(const DoctorOptions&) {
  int nodes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    nodes += name.starts_with("node") && name.find_first_not_of("0123456789", 4) == std::string::npos;
  }
  Finding found{"NUMA", Status::ok, nodes == 0 ? "unknown" : counted(nodes, "node")};
  found.number = nodes;
  if (nodes > 1) found.text += "; --bind places ranks";
  return found;
}

Finding memory(const DoctorOptions&) {
  const int64_t available = available_memory();
  Finding found{"memory", Status::ok,
                fmt::format("{} available of {}", human_bytes(available), human_bytes(total_memory()))};
  found.number = available;
  // Cgroup version 1; available_memory reads version 2.
  std::ifstream limit_of_group("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  int64_t limit = 0;
  if (limit_of_group >> limit && limit < total_memory())
    found.text += fmt::format(", the control group grants {}", human_bytes(limit));
  if (available < kGiB / 2) {
    found.status = Status::warn;
    found.fix = "less than most plans need: end what else runs here, or raise the group's limit (docker run --memory)";
  }
  return found;
}

// Checks overcommit, because arenas are mapped at once but touched gradually.
Finding overcommit(const DoctorOptions&) {
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  int mode = 0;
  file >> mode;
  if (mode != 2) return {"overcommit", Status::ok, "memory is taken when it is touched"};
  return {"overcommit", Status::warn, "memory is taken when it is mapped (vm.overcommit_memory = 2)",
          "jobs need more than they use: sysctl vm.overcommit_memory=0"};
}

// Returns "" if everything was written, otherwise the error.
std::string fill(int fd, int64_t bytes) {
  const std::string piece(static_cast<size_t>(kMiB), 'p');
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = write(fd, piece.data(), static_cast<size_t>(std::min(kMiB, bytes - done)));
    if (n <= 0) return fmt::format("{} after {}", std::strerror(errno), human_bytes(done));
    done += n;
  }
  return "";
}

Finding shared_memory(const DoctorOptions&) {
  Finding found{"/dev/shm"};
  struct statvfs status {};
  if (statvfs("/dev/shm", &status) != 0)
    return {"/dev/shm", Status::warn, "missing",
            "libraries of GPUs take their buffers from there: mount a tmpfs on it"};
  found.number = static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  const int64_t tried = std::min({found.number / 2, 256 * kMiB, std::max<int64_t>(0, available_memory() / 4)});
  std::string path = "/dev/shm/prun-doctor-XXXXXX";
  const int fd = mkstemp(path.data());
  const std::string problem = fd < 0 ? std::strerror(errno) : fill(fd, tried);
  if (fd >= 0) unlink(path.c_str()), close(fd);
  found.text = fmt::format("{} free, {} written", human_bytes(found.number), human_bytes(tried));
  if (!problem.empty()) {
    found.status = Status::warn;
    found.text = fmt::format("{} free, but: {}", human_bytes(found.number), problem);
    found.fix =
        "libraries of GPUs take their buffers from there: the control group's memory limit counts them (docker run "
        "--memory)";
  } else if (found.number < kGiB) {
    found.status = Status::warn;
    found.fix =
        "libraries of GPUs take their buffers from there (docker run --shm-size=1g; prun's own transports do not use "
        "it)";
  }
  return found;
}

// Tries a memfd, which the shm transport shares between ranks.
Finding anonymous_memory(const DoctorOptions&) {
  const int fd = memfd_create("prun-doctor", MFD_CLOEXEC);
  const int64_t tried = std::min(64 * kMiB, std::max<int64_t>(kMiB, available_memory() / 4));
  const std::string problem = fd < 0 ? std::strerror(errno) : fill(fd, tried);
  if (fd >= 0) close(fd);
  if (problem.empty()) return {"memfd", Status::ok, fmt::format("{} written", human_bytes(tried))};
  return {"memfd", Status::fail, problem,
          "ranks of a host share memory through it: allow memfd_create (seccomp profile), or --transport socket"};
}

// Runs a plan's script in its sandbox.
Finding script(const DoctorOptions& options) {
  const fs::path root = fs::path(options.job.lua_dir).parent_path();
  const std::vector<std::string> plans = plan_paths(root);
  if (plans.empty()) return {"script", Status::absent, "no plans beside this program"};
  JobSpec asked = options.job;
  asked.plan = (root / plans.front()).string();
  const auto begin = std::chrono::steady_clock::now();
  try {
    describe_plan(asked);
  } catch (const Error& error) {
    return {"script", Status::fail, error.what(), "a plan's script runs in a child process under seccomp and limits"};
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {"script", Status::ok, fmt::format("{} ran in its sandbox, {}", plans.front(), human_seconds(seconds))};
}

}  // namespace

Findings machine(const DoctorOptions& options) {
  Findings found;
  for (const auto check : {cores, quota, numa, memory, overcommit, shared_memory, anonymous_memory, script})
    found.push_back(check(options));
  return found;
}

}  // namespace prun::doctor
