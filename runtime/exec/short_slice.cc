// Short time slices, for a thread that works briefly and often beside one that computes.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "exec/host_thread.h"

namespace prun {
namespace {

constexpr uint64_t kSliceNs = 300 * 1000;

// The kernel's struct sched_attr, which glibc has from 2.41 on.
struct Attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};

}  // namespace

void take_short_slices() {
  Attributes attributes = {};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;  // the policy was set deliberately: keep it
  attributes.size = sizeof attributes;
  attributes.runtime = kSliceNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace prun
