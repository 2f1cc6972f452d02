#include "machine.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <thread>

#include "base/cores.h"
#include "base/text.h"
#include "launch/preflight.h"

namespace prun {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

MachineFact cores() {
  const int usable = usable_cores(), all = static_cast<int>(std::thread::hardware_concurrency());
  return {"cores",
          usable == all ? std::to_string(usable) : fmt::format("{} of {} (this process's cpuset)", usable, all), usable,
          ""};
}

MachineFact memory() {
  const int64_t available = available_memory();
  return {"memory", fmt::format("{} available of {}", human_bytes(available), human_bytes(total_memory())), available,
          available < kGiB / 2 ? "less than most plans need" : ""};
}

// NCCL's buffers lie there; those of prun's own transports do not.
MachineFact shared_memory() {
  struct statvfs status {};
  if (statvfs("/dev/shm", &status) != 0)
    return {"/dev/shm", "missing", 0, "NCCL takes its buffers from there: mount a tmpfs on it"};
  const int64_t free = static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  return {"/dev/shm", human_bytes(free) + " free", free,
          free < kGiB
              ? "NCCL takes its buffers from there (docker run --shm-size=1g; prun's own transports do not use it)"
              : ""};
}

struct Limit {
  const char* name;
  decltype(RLIMIT_NOFILE) which;
  bool bytes;
  bool soft;  // the soft limit counts; else the hard one, to which prun raises it
  int64_t least;
  const char* advice;
};
const Limit kLimits[] = {
    {"open files", RLIMIT_NOFILE, false, false, 1024, "a job of many ranks needs two for each (ulimit -Hn)"},
    {"processes", RLIMIT_NPROC, false, true, 1024, "every rank has several threads, which count (ulimit -u)"},
    {"locked memory", RLIMIT_MEMLOCK, true, true, kGiB,
     "RDMA of ucx and nccl registers its buffers under this limit (ulimit -l unlimited; docker run --ulimit "
     "memlock=-1)"},
    {"address space", RLIMIT_AS, true, true, int64_t{1} << 44,
     "CUDA reserves as much address space as host and GPUs have memory (ulimit -v unlimited)"},
};

MachineFact limit_fact(const Limit& limit) {
  rlimit now{RLIM_INFINITY, RLIM_INFINITY};
  getrlimit(limit.which, &now);
  const rlim_t value = limit.soft ? now.rlim_cur : now.rlim_max;
  if (value == RLIM_INFINITY) return {limit.name, "unlimited", -1, ""};
  const int64_t number = static_cast<int64_t>(value);
  return {limit.name, limit.bytes ? human_bytes(number) : std::to_string(number), number,
          number < limit.least ? limit.advice : ""};
}

}  // namespace

std::vector<MachineFact> machine_facts() {
  std::vector<MachineFact> facts = {cores(), memory(), shared_memory()};
  for (const Limit& limit : kLimits) facts.push_back(limit_fact(limit));
  return facts;
}

}  // namespace prun
