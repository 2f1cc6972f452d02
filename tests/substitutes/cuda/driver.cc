// A libcuda.so.1 without devices that accepts every kernel. With it cuDNN makes plans for devices that are only
// described: it compiles their kernels, and requests the driver to load them.
#include <cstdint>

#define ENTRY extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0, kNoDevice = 100;

}  // namespace

ENTRY int cuInit(unsigned) { return kNoDevice; }
ENTRY int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
ENTRY int cuDeviceGetCount(int* count) {
  *count = 0;
  return kSuccess;
}
ENTRY int cuGetErrorString(int, const char** text) {
  *text = "of a driver without devices";
  return kSuccess;
}
ENTRY int cuLibraryLoadData(void** library, const void* code) {  // and options
  *library = const_cast<void*>(code);
  return kSuccess;
}
ENTRY int cuLibraryGetKernel(void** kernel, void* library) {  // and a name
  *kernel = library;
  return kSuccess;
}
ENTRY int cuLibraryUnload(void*) { return kSuccess; }

// cuDNN requires these symbols, but does not call them for a plan.
#define NEVER_CALLED(name) \
  ENTRY int name() { return kNoDevice; }
NEVER_CALLED(cuCtxGetCurrent)
NEVER_CALLED(cuCtxGetLimit)
NEVER_CALLED(cuCtxPopCurrent)
NEVER_CALLED(cuCtxPushCurrent)
NEVER_CALLED(cuDeviceGet)
NEVER_CALLED(cuGetErrorName)
NEVER_CALLED(cuKernelGetAttribute)
NEVER_CALLED(cuKernelSetAttribute)
NEVER_CALLED(cuLaunchCooperativeKernel)
NEVER_CALLED(cuLaunchKernel)
NEVER_CALLED(cuLaunchKernelEx)
NEVER_CALLED(cuLibraryLoadFromFile)
NEVER_CALLED(cuLinkAddData)
NEVER_CALLED(cuLinkComplete)
NEVER_CALLED(cuLinkCreate)
NEVER_CALLED(cuLinkDestroy)
NEVER_CALLED(cuOccupancyMaxPotentialClusterSize)
NEVER_CALLED(cuStreamGetCtx)
