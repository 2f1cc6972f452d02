// Finds and loads the libraries. They are never unloaded, because both own threads.
#include "library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <vector>

namespace prun::nccl {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 18, 0);
constexpr const char* kNoDriver = "no NVIDIA driver on this machine (libcuda.so.1 is not found)";

bool has_driver() { return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr; }

// Opens the first of `names` that loads; `what` begins the error if none does. Throws Failure(PRUN_ENOTSUP).
void* open_first(const std::vector<std::string>& names, const char* what) {
  std::string why;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    if (why.empty()) why = dlerror();
  }
  throw Failure{PRUN_ENOTSUP, fmt::format("{} cannot be loaded: {}", what, why)};
}

std::string path_of(const void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "an unknown file";
}

std::vector<std::string> nccl_names(const std::string& name) {
  return name.empty() ? std::vector<std::string>{"libnccl.so.2", "libnccl.so"} : std::vector<std::string>{name};
}
std::vector<std::string> cudart_names(const std::string& name) {
  if (!name.empty()) return {name};
  return {fmt::format("libcudart.so.{}", CUDART_VERSION / 1000), "libcudart.so"};
}

// NCCL has no error code for it: "Failed to CUDA calloc async 1048576 bytes", "Cuda failure 2 'out of memory'".
bool says_no_memory(const std::string& words) {
  for (const char* phrase : {"out of memory", "Failed to CUDA calloc", "Failed to CUDA malloc"})
    if (words.find(phrase) != std::string::npos) return true;
  return false;
}
// Detects NCCL's text in a container whose /dev/shm has 64 MiB.
bool says_no_shared_memory(const std::string& words) {
  return words.find("No space left on device") != std::string::npos;
}

std::string cuda_version_text(int code) { return fmt::format("{}.{}", code / 1000, code % 1000 / 10); }

}  // namespace

Symbols::Symbol Symbols::newer(const char* name) const { return {handle != nullptr ? dlsym(handle, name) : nullptr}; }

Symbols::Symbol Symbols::find(const char* name) const {
  const Symbol found = newer(name);
  if (found.at == nullptr && handle != nullptr)
    throw Failure{PRUN_ENOTSUP, fmt::format("the library that was loaded has no {}", name)};
  return found;
}

std::string version_text(int code) { return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100); }

Library::Library(const std::string& nccl_name, const std::string& cudart_name) {
  // The driver is checked first: without one the runtime's own message ("driver version is insufficient") misleads.
  if (nccl_name.empty() && cudart_name.empty() && !has_driver()) throw Failure{PRUN_ENOTSUP, kNoDriver};
  cuda_ = Cuda{{open_first(cudart_names(cudart_name), "the CUDA runtime")}};
  cudart_path_ = path_of(reinterpret_cast<const void*>(cuda_.set_device));
  const Symbols library{open_first(nccl_names(nccl_name), "NCCL")};
  const decltype(&::ncclGetVersion) get_version = library.find("ncclGetVersion");
  get_version(&version_);
  text_ = fmt::format("NCCL {}, {}", version_text(version_), path_of(reinterpret_cast<const void*>(get_version)));
  if (version_ < kOldest)
    throw Failure{PRUN_ENOTSUP, fmt::format("{} is needed, loaded is {}", version_text(kOldest), text_)};
  nccl_ = Nccl{library};
  cudaError_t error = cuda_.get_device_count(&devices_);
  if (error != cudaSuccess || devices_ == 0) {
    std::string why = error != cudaSuccess ? cuda_.error_string(error) : "there is none";
    throw Failure{PRUN_ENOTSUP, fmt::format("no CUDA device: {} ({})", why, cuda_text())};
  }
}

std::string Library::cuda_text() const {
  int runtime = 0, driver = 0;
  cuda_.runtime_version(&runtime);
  cuda_.driver_version(&driver);
  return fmt::format("CUDA runtime {}, driver {}, {}", cuda_version_text(runtime), cuda_version_text(driver),
                     cudart_path_);
}

Failure Library::failure(const char* call, ncclResult_t error) const {
  const char* last = nccl_.last_error(nullptr);
  std::string words = last != nullptr ? last : "";
  while (!words.empty() && (words.back() == '\n' || words.back() == ' ')) words.pop_back();
  constexpr size_t kWords = 110;  // a result has 240 bytes, and the library's name must fit
  if (words.size() > kWords) words.resize(kWords);
  if (error == ncclUnhandledCudaError && says_no_memory(words))
    return {PRUN_ENOMEM, -1,
            fmt::format("{}: NCCL finds no device memory for its buffers: {} ({})", call, words, text_)};
  if (error == ncclSystemError && says_no_shared_memory(words))
    return {PRUN_ESYSTEM, -1,
            fmt::format("{}: NCCL finds no space in /dev/shm (docker run --shm-size=1g): {} ({})", call, words, text_)};
  const prun_status status = error == ncclInvalidArgument || error == ncclInvalidUsage ? PRUN_EINVAL
                             : error == ncclRemoteError                                ? PRUN_EPEER
                                                                                       : PRUN_ESYSTEM;
  return {status, -1,
          fmt::format("{}: {}{}{} ({})", call, nccl_.error_string(error), words.empty() ? "" : ": ", words, text_)};
}

Failure Library::failure(const char* call, cudaError_t error) const {
  return {error == cudaErrorMemoryAllocation ? PRUN_ENOMEM : PRUN_ESYSTEM, -1,
          fmt::format("{}: {} ({})", call, cuda_.error_string(error), cuda_text())};
}

void Library::check(const char* call, cudaError_t error) const {
  if (error != cudaSuccess) throw failure(call, error);
}

bool Library::capturing(cudaStream_t stream) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check("cudaStreamIsCapturing", cuda_.stream_is_capturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// Both version calls work without a device.
std::string found_here() {
  const Symbols cuda_library{open_first(cudart_names(""), "the CUDA runtime")},
      nccl_library{open_first(nccl_names(""), "NCCL")};
  const decltype(&::cudaRuntimeGetVersion) runtime_version = cuda_library.find("cudaRuntimeGetVersion");
  const decltype(&::ncclGetVersion) nccl_version = nccl_library.find("ncclGetVersion");
  int runtime = 0, nccl = 0;
  runtime_version(&runtime);
  nccl_version(&nccl);
  return fmt::format("NCCL {} ({}), CUDA runtime {} ({})", version_text(nccl),
                     path_of(reinterpret_cast<const void*>(nccl_version)), cuda_version_text(runtime),
                     path_of(reinterpret_cast<const void*>(runtime_version)));
}

std::string missing_here(const std::string& nccl_name, const std::string& cudart_name) {
  if (nccl_name.empty() && cudart_name.empty() && !has_driver()) return kNoDriver;
  try {
    open_first(cudart_names(cudart_name), "the CUDA runtime");
    open_first(nccl_names(nccl_name), "NCCL");
    return "";
  } catch (const Failure& failure) {
    return failure.message;
  }
}

}  // namespace prun::nccl
