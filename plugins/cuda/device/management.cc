#include "management.h"

#include <dlfcn.h>

namespace prun::cuda {
namespace {

// Declarations from nvml.h. Every function returns 0 for success; states are 0 and 1.
struct MemoryInfo {
  unsigned long long total, free, used;
};
using Device = void*;
using Start = int (*)();
using Count = int (*)(unsigned*);
using ByIndex = int (*)(unsigned, Device*);
using ByPlace = int (*)(const char*, Device*);
using MemoryOf = int (*)(Device, MemoryInfo*);
using StateOf = int (*)(Device, int*);
using MigOf = int (*)(Device, unsigned* now, unsigned* later);
using ErrorsOf = int (*)(Device, int kind, int counter, unsigned long long*);
using RowsOf = int (*)(Device, unsigned* corrected, unsigned* uncorrected, unsigned* waiting, unsigned* failed);
constexpr int kUncorrected = 1, kSinceLoaded = 0;

// Returns whether rows of the memory could not be replaced (`could_not`), or wait for replacement.
std::optional<bool> rows(RowsOf ask, Device gpu, bool could_not) {
  unsigned corrected = 0, uncorrected = 0, waiting = 0, failed = 0;
  if (ask == nullptr || gpu == nullptr || ask(gpu, &corrected, &uncorrected, &waiting, &failed) != 0)
    return std::nullopt;
  return (could_not ? failed : waiting) != 0;
}

}  // namespace

// Initializes NVML, which counts its initializations.
Management::Management() {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  const auto start = find<Start>("nvmlInit_v2");
  if (start == nullptr || start() != 0) library_ = nullptr;
}
Management::~Management() {
  if (const auto end = find<Start>("nvmlShutdown")) end();
}

template <class Function>
Function Management::find(const char* name) const {
  return library_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library_, name));
}

void* Management::device(const std::string& pci) const {
  const auto by_place = find<ByPlace>("nvmlDeviceGetHandleByPciBusId_v2");
  Device found = nullptr;
  return by_place != nullptr && by_place(pci.c_str(), &found) == 0 ? found : nullptr;
}

int Management::mig_gpus() const {
  const auto count = find<Count>("nvmlDeviceGetCount_v2");
  const auto by_index = find<ByIndex>("nvmlDeviceGetHandleByIndex_v2");
  const auto mig = find<MigOf>("nvmlDeviceGetMigMode");
  unsigned devices = 0;
  if (count == nullptr || by_index == nullptr || mig == nullptr || count(&devices) != 0) return 0;
  int divided = 0;
  for (unsigned i = 0; i < devices; ++i) {
    Device device = nullptr;
    unsigned now = 0, later = 0;
    if (by_index(i, &device) == 0 && mig(device, &now, &later) == 0 && now == 1) ++divided;
  }
  return divided;
}

std::optional<uint64_t> Management::used_bytes(const std::string& pci) const {
  const auto ask = find<MemoryOf>("nvmlDeviceGetMemoryInfo");
  const Device gpu = device(pci);
  MemoryInfo memory{};
  if (ask == nullptr || gpu == nullptr || ask(gpu, &memory) != 0) return std::nullopt;
  return memory.used;
}

std::optional<bool> Management::persistent(const std::string& pci) const {
  const auto ask = find<StateOf>("nvmlDeviceGetPersistenceMode");
  const Device gpu = device(pci);
  int state = 0;
  if (ask == nullptr || gpu == nullptr || ask(gpu, &state) != 0) return std::nullopt;
  return state == 1;
}

std::optional<uint64_t> Management::lost_bits(const std::string& pci) const {
  const auto ask = find<ErrorsOf>("nvmlDeviceGetTotalEccErrors");
  const Device gpu = device(pci);
  unsigned long long errors = 0;
  if (ask == nullptr || gpu == nullptr || ask(gpu, kUncorrected, kSinceLoaded, &errors) != 0) return std::nullopt;
  return errors;
}

std::optional<bool> Management::needs_repair(const std::string& pci) const {
  return rows(find<RowsOf>("nvmlDeviceGetRemappedRows"), device(pci), true);
}
std::optional<bool> Management::waits_for_reset(const std::string& pci) const {
  return rows(find<RowsOf>("nvmlDeviceGetRemappedRows"), device(pci), false);
}

}  // namespace prun::cuda
