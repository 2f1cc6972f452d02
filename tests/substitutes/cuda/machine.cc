// The machine: devices, their properties, versions, and texts of errors.
#include "machine.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "memory.h"

namespace substitute {
namespace {

thread_local int device = 0;
thread_local cudaError_t last_error = cudaSuccess;

int driver() { return static_cast<int>(setting("DRIVER", CUDART_VERSION)); }

// Returns the runtime's answer to its first call.
cudaError_t machine_state(int* devices) {
  *devices = 0;
  if (driver() / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;  // 0: no driver at all
  *devices = static_cast<int>(setting("DEVICES", 16));
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr && *visible == '\0') *devices = 0;  // only an empty list is supported
  return *devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t check_device(int index) {
  int devices = 0;
  const cudaError_t state = machine_state(&devices);
  if (state != cudaSuccess) return state;
  return index >= 0 && index < devices ? cudaSuccess : cudaErrorInvalidDevice;
}

}  // namespace

void die(const std::string& why) {
  std::fprintf(stderr, "substitute for CUDA: %s\n", why.c_str());
  std::abort();
}

int64_t setting(const char* name, int64_t otherwise) {
  const char* value = std::getenv((std::string("PRUN_SUBSTITUTE_") + name).c_str());
  return value != nullptr ? std::atoll(value) : otherwise;
}

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
int current_device() { return device; }
size_t memory_bytes() { return static_cast<size_t>(setting("MEMORY_MIB", 8192)) << 20; }
int capability() { return static_cast<int>(setting("CAPABILITY", 90)); }
size_t most_shared_bytes() {
  const int c = capability();
  return (c == 80 || c == 87 ? 163 : c < 90 || c >= 120 ? 99 : 227) * size_t{1024};
}
uint64_t random_number() {
  static std::atomic<uint64_t> counter{mix(static_cast<uint64_t>(setting("SEED", 1)))};
  return mix(++counter);
}

}  // namespace substitute

using substitute::result;

ENTRY cudaError_t cudaGetDeviceCount(int* count) { return result(substitute::machine_state(count)); }
ENTRY cudaError_t cudaSetDevice(int index) {
  cudaError_t error = substitute::check_device(index);
  if (error == cudaSuccess && substitute::setting("BUSY", -1) == index) error = cudaErrorDevicesUnavailable;
  if (error == cudaSuccess) {
    substitute::device = index;
    substitute::make_context(index);
  }
  return result(error);
}
ENTRY cudaError_t cudaGetDevice(int* index) { return *index = substitute::device, cudaSuccess; }
ENTRY cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
ENTRY cudaError_t cudaDriverGetVersion(int* version) { return *version = substitute::driver(), cudaSuccess; }
ENTRY cudaError_t cudaGetLastError() { return std::exchange(substitute::last_error, cudaSuccess); }

ENTRY cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  const cudaError_t error = substitute::check_device(index);
  if (error != cudaSuccess) return result(error);
  cudaDeviceProp& p = *properties;
  std::memset(&p, 0, sizeof p);
  const bool instance = substitute::setting("MIG", 0) != 0;
  const bool other = index >= substitute::setting("OTHER", index + 1);  // an older model
  std::snprintf(p.name, sizeof p.name, "substitute of %s GPU%s", other ? "another" : "a",
                instance ? " MIG 1g.10gb" : "");
  std::memset(p.uuid.bytes, 0x5b, sizeof p.uuid.bytes);
  p.uuid.bytes[15] = static_cast<char>(index);
  p.totalGlobalMem = substitute::memory_bytes();
  p.sharedMemPerBlock = 48 * 1024;
  p.sharedMemPerBlockOptin = substitute::most_shared_bytes();
  p.sharedMemPerMultiprocessor = p.sharedMemPerBlockOptin + 1024;
  p.reservedSharedMemPerBlock = 1024;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  const int block[3] = {1024, 1024, 64}, grid[3] = {2147483647, 65535, 65535};
  std::copy(block, block + 3, p.maxThreadsDim);
  std::copy(grid, grid + 3, p.maxGridSize);
  p.major = other ? 8 : substitute::capability() / 10;
  p.minor = other ? 0 : substitute::capability() % 10;
  p.multiProcessorCount = static_cast<int>(substitute::setting("MULTIPROCESSORS", 4));
  p.canMapHostMemory = p.unifiedAddressing = p.concurrentKernels = p.streamPrioritiesSupported = 1;
  p.hostRegisterSupported = p.computePreemptionSupported = 1;
  p.asyncEngineCount = 2;
  p.pciBusID = index + 1;
  p.l2CacheSize = 32 << 20;
  p.memoryBusWidth = 4096;
  p.totalConstMem = 65536;
  return cudaSuccess;
}
ENTRY cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, index);
  if (error != cudaSuccess) return error;
  const auto set = [](const char* name, int otherwise) {
    return static_cast<int>(substitute::setting(name, otherwise));
  };
  const std::pair<cudaDeviceAttr, int> known[] = {{cudaDevAttrComputeCapabilityMajor, p.major},
                                                  {cudaDevAttrComputeCapabilityMinor, p.minor},
                                                  {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
                                                  {cudaDevAttrClockRate, 1500000},  // kHz
                                                  {cudaDevAttrComputeMode, set("COMPUTE_MODE", 0)},
                                                  {cudaDevAttrEccEnabled, set("ECC", 1)}};
  for (const auto& [name, number] : known)
    if (name == attribute) return *value = number, cudaSuccess;
  substitute::die("device attribute " + std::to_string(attribute) + " is none that the substitute knows (machine.cc)");
}
ENTRY cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int index) {
  const cudaError_t error = substitute::check_device(index);
  if (error != cudaSuccess) return result(error);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", index + 1);
  return cudaSuccess;
}
ENTRY cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
ENTRY cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  return *can = substitute::setting("PEERS", 2) > 0 ? 1 : 0, cudaSuccess;
}
ENTRY cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int, int) {
  if (attribute != cudaDevP2PAttrNativeAtomicSupported)
    substitute::die("P2P attribute " + std::to_string(attribute) + " is none that the substitute knows (machine.cc)");
  return *value = substitute::setting("PEERS", 2) > 1 ? 1 : 0, cudaSuccess;
}

// The errors that prun can encounter. Names and texts are CUDA's.
#define KNOWN_ERRORS(X)                                                                                             \
  X(cudaSuccess, "no error")                                                                                        \
  X(cudaErrorInvalidValue, "invalid argument")                                                                      \
  X(cudaErrorMemoryAllocation, "out of memory")                                                                     \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                                \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")                    \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                                        \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                                               \
  X(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable")                               \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                                      \
  X(cudaErrorIllegalState, "the operation cannot be performed in the present state")                                \
  X(cudaErrorNotReady, "device not ready")                                                                          \
  X(cudaErrorNotSupported, "operation not supported")                                                               \
  X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped")            \
  X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")                  \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                          \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")                   \
  X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")                 \
  X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")                        \
  X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                           \
  X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")                     \
  X(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream") \
  X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")              \
  X(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread")

ENTRY const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define TEXT(name, text) \
  case name:             \
    return text;
    KNOWN_ERRORS(TEXT)
#undef TEXT
    default:
      return "an error of the substitute";
  }
}
ENTRY const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define NAME(name, text) \
  case name:             \
    return #name;
    KNOWN_ERRORS(NAME)
#undef NAME
    default:
      return "cudaErrorUnknown";
  }
}
