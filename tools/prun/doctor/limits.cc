// Limits of this process. Descriptors and processes are allocated as a test; the other limits are read.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/cores.h"
#include "base/text.h"
#include "doctor/check.h"

namespace prun::doctor {
namespace {

constexpr int64_t kUnlimited = -1;

int64_t limit_of(decltype(RLIMIT_NOFILE) which, bool soft) {
  rlimit now{RLIM_INFINITY, RLIM_INFINITY};
  getrlimit(which, &now);
  const rlim_t value = soft ? now.rlim_cur : now.rlim_max;
  return value == RLIM_INFINITY ? kUnlimited : static_cast<int64_t>(value);
}

int ranks_here(const DoctorOptions& options) {
  return options.job.launch.nproc > 1 ? options.job.launch.nproc : usable_cores();
}

// Opens as many descriptors as a launcher of 512 ranks does, in a child that raises the soft limit to the hard one,
// like prun.
Finding open_files(const DoctorOptions&) {
  constexpr int kTried = 1024;
  const int64_t limit = limit_of(RLIMIT_NOFILE, false);
  Finding found{"open files", Status::ok, limit == kUnlimited ? "unlimited" : std::to_string(limit)};
  found.number = limit;
  const pid_t child = fork();
  if (child == 0) {
    rlimit now{};
    getrlimit(RLIMIT_NOFILE, &now);
    now.rlim_cur = now.rlim_max;
    setrlimit(RLIMIT_NOFILE, &now);
    int opened = 0;
    while (opened < kTried && dup(STDERR_FILENO) >= 0) ++opened;
    _exit(opened == kTried ? 0 : 1);
  }
  int status = 0;
  if (child > 0 && waitpid(child, &status, 0) == child && status == 0) {
    found.text += fmt::format(", {} opened", kTried);
    return found;
  }
  found.status = Status::warn;
  found.text += fmt::format(", {} cannot be opened", kTried);
  found.fix = "a job of many ranks needs two for each: raise the hard limit (ulimit -Hn; docker run --ulimit nofile)";
  return found;
}

// Starts as many processes as there would be ranks, each with four threads.
Finding processes(const DoctorOptions& options) {
  const int ranks = std::min(256, ranks_here(options));
  const int64_t limit = limit_of(RLIMIT_NPROC, true);
  Finding found{"processes", Status::ok, limit == kUnlimited ? "unlimited" : std::to_string(limit)};
  found.number = limit;
  std::vector<pid_t> children;
  std::string problem;
  for (int i = 0; i < ranks && problem.empty(); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      try {
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t) threads.emplace_back([] { usleep(2000); });
        for (std::thread& thread : threads) thread.join();
      } catch (const std::exception&) {
        _exit(1);
      }
      _exit(0);
    }
    if (child < 0) problem = fmt::format("process {}: {}", i + 1, std::strerror(errno));
    if (child > 0) children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0 && problem.empty()) problem = "a rank cannot start its threads";
  }
  if (problem.empty()) {
    found.text += fmt::format(", {} of four threads started", counted(ranks, "rank"));
    return found;
  }
  found.status = Status::fail;
  found.text += ": " + problem;
  found.fix = "every rank has several threads, which count: raise the limit (ulimit -u; docker run --pids-limit)";
  return found;
}

struct ReadLimit {
  const char* name;
  decltype(RLIMIT_NOFILE) which;
  int64_t least;
  const char* fix;
};
const ReadLimit kReadLimits[] = {
    {"locked memory", RLIMIT_MEMLOCK, int64_t{1} << 30,
     "RDMA registers its buffers under this limit (ulimit -l unlimited; docker run --ulimit "
     "memlock=-1)"},
    {"address space", RLIMIT_AS, int64_t{1} << 44,
     "drivers of GPUs reserve as much address space as host and GPUs have memory, shm maps its peers' (ulimit -v "
     "unlimited)"},
    {"file size", RLIMIT_FSIZE, int64_t{1} << 40,
     "it limits checkpoints and the memory that ranks share through shm (ulimit -f unlimited)"},
};

}  // namespace

Findings limits(const DoctorOptions& options) {
  Findings found = {open_files(options), processes(options)};
  for (const ReadLimit& limit : kReadLimits) {
    const int64_t value = limit_of(limit.which, true);
    Finding one{limit.name, Status::ok, value == kUnlimited ? "unlimited" : human_bytes(value)};
    one.number = value;
    // One host without GPUs depends on the last limit only.
    const bool matters = options.job.launch.nnodes > 1 || options.device_given || limit.which == RLIMIT_FSIZE;
    if (value != kUnlimited && value < limit.least)
      one.status = matters ? Status::warn : Status::absent, one.fix = limit.fix;
    found.push_back(one);
  }
  return found;
}

}  // namespace prun::doctor
