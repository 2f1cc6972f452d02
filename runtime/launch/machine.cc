#include "launch/machine.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <thread>

#include "base/cores.h"
#include "base/text.h"
#include "launch/preflight.h"

namespace prun {
namespace {

MachineFact cores() {
  const int usable = usable_cores(), all = static_cast<int>(std::thread::hardware_concurrency());
  return {"cores",
          usable == all ? std::to_string(usable) : fmt::format("{} of {} (this process's cpuset)", usable, all)};
}

MachineFact memory() {
  return {"memory", fmt::format("{} available of {}", human_bytes(available_memory()), human_bytes(total_memory()))};
}

MachineFact shared_memory() {
  struct statvfs status {};
  if (statvfs("/dev/shm", &status) != 0) return {"/dev/shm", "missing"};
  return {"/dev/shm",
          human_bytes(static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize)) + " free"};
}

struct Limit {
  const char* name;
  decltype(RLIMIT_NOFILE) which;
  bool bytes;
  bool soft;  // the soft limit applies; false: the hard one, to which prun raises it
};
const Limit kLimits[] = {
    {"open files", RLIMIT_NOFILE, false, false},   {"processes", RLIMIT_NPROC, false, true},
    {"locked memory", RLIMIT_MEMLOCK, true, true}, {"address space", RLIMIT_AS, true, true},
    {"file size", RLIMIT_FSIZE, true, true},
};

MachineFact limit_fact(const Limit& limit) {
  rlimit now{RLIM_INFINITY, RLIM_INFINITY};
  getrlimit(limit.which, &now);
  const rlim_t value = limit.soft ? now.rlim_cur : now.rlim_max;
  if (value == RLIM_INFINITY) return {limit.name, "unlimited"};
  const int64_t number = static_cast<int64_t>(value);
  return {limit.name, limit.bytes ? human_bytes(number) : std::to_string(number)};
}

}  // namespace

std::vector<MachineFact> machine_facts() {
  std::vector<MachineFact> facts = {cores(), memory(), shared_memory()};
  for (const Limit& limit : kLimits) facts.push_back(limit_fact(limit));
  return facts;
}

}  // namespace prun
