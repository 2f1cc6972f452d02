// NVML, as far as plugins/cuda/device/management.cc uses it. Without settings it answers "not supported", as on many
// machines.
//
//     PRUN_SUBSTITUTE_PERSISTENCE=0|1, LOST_BITS=N, ROWS_WAITING=1, ROWS_FAILED=1, DIVIDED=N (GPUs with MIG on)
#include <cstdlib>

#include "substitute.h"

namespace {

constexpr int kNotSupported = 3;
struct Memory {
  unsigned long long total, free, used;
};

int answer(const char* name, unsigned long long* value) {
  const int64_t set = substitute::setting(name, -1);
  if (set < 0) return kNotSupported;
  *value = static_cast<unsigned long long>(set);
  return 0;
}
void* handle(unsigned index) { return reinterpret_cast<void*>(static_cast<uintptr_t>(index) + 1); }
int index_of(void* device) { return static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1; }

}  // namespace

ENTRY int nvmlInit_v2() { return 0; }
ENTRY int nvmlShutdown() { return 0; }
ENTRY int nvmlDeviceGetCount_v2(unsigned* count) {
  return *count = static_cast<unsigned>(substitute::setting("DIVIDED", 0)), 0;
}
ENTRY int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return *device = handle(index), 0; }
// "0000:01:00.0" is GPU 0 (machine.cc).
ENTRY int nvmlDeviceGetHandleByPciBusId_v2(const char* place, void** device) {
  return *device = handle(static_cast<unsigned>(std::strtoul(place + 5, nullptr, 16)) - 1), 0;
}
ENTRY int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* later) {
  *now = *later = index_of(device) < substitute::setting("DIVIDED", 0) ? 1 : 0;
  return 0;
}
ENTRY int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->used = substitute::used_bytes(index_of(device));
  return 0;
}
ENTRY int nvmlDeviceGetPersistenceMode(void*, int* state) {
  unsigned long long value = 0;
  const int status = answer("PERSISTENCE", &value);
  return *state = static_cast<int>(value), status;
}
ENTRY int nvmlDeviceGetTotalEccErrors(void*, int, int, unsigned long long* errors) {
  return answer("LOST_BITS", errors);
}
ENTRY int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* waiting,
                                    unsigned* failed) {
  *corrected = *uncorrected = 0;
  *waiting = static_cast<unsigned>(substitute::setting("ROWS_WAITING", 0));
  *failed = static_cast<unsigned>(substitute::setting("ROWS_FAILED", 0));
  return 0;
}
