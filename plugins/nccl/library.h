// The CUDA runtime and NCCL, loaded when a context is opened: the plugin loads on machines without them, and one build
// serves NCCL 2.18 and newer. Functions of newer versions are null where the loaded library lacks them.
//
// Most reports about NCCL depend on which of several installed libraries was loaded, so every failure ends with the
// version and the file.
#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <prun/sdk/failure.h>

#include <string>

namespace prun::nccl {

using sdk::Failure;

// Functions of a loaded library, resolved when the struct is constructed.
struct Symbols {
  struct Symbol {
    void* at;
    template <class Function>
    operator Function() const {  // NOLINT(google-explicit-constructor): members are initialized with it
      return reinterpret_cast<Function>(at);
    }
  };
  Symbol find(const char* name) const;   // throws Failure(PRUN_ENOTSUP) if the library lacks it
  Symbol newer(const char* name) const;  // null if the library lacks it

  void* handle = nullptr;  // handle of dlopen; null = nothing is loaded, and all functions are null
};

struct Cuda : Symbols {
  decltype(&::cudaGetDeviceCount) get_device_count = find("cudaGetDeviceCount");
  decltype(&::cudaSetDevice) set_device = find("cudaSetDevice");
  decltype(&::cudaDeviceGetAttribute) device_attribute = find("cudaDeviceGetAttribute");
  decltype(&::cudaRuntimeGetVersion) runtime_version = find("cudaRuntimeGetVersion");
  decltype(&::cudaDriverGetVersion) driver_version = find("cudaDriverGetVersion");
  decltype(&::cudaGetErrorString) error_string = find("cudaGetErrorString");
  decltype(&::cudaStreamCreateWithFlags) stream_create = find("cudaStreamCreateWithFlags");
  decltype(&::cudaStreamDestroy) stream_destroy = find("cudaStreamDestroy");
  decltype(&::cudaStreamSynchronize) stream_synchronize = find("cudaStreamSynchronize");
  decltype(&::cudaStreamWaitEvent) stream_wait_event = find("cudaStreamWaitEvent");
  decltype(&::cudaStreamIsCapturing) stream_is_capturing = find("cudaStreamIsCapturing");
  decltype(&::cudaThreadExchangeStreamCaptureMode) exchange_capture_mode = find("cudaThreadExchangeStreamCaptureMode");
  cudaError_t (*event_create)(cudaEvent_t*, unsigned) = find("cudaEventCreateWithFlags");
  cudaError_t (*event_record)(cudaEvent_t, cudaStream_t) = find("cudaEventRecord");
  decltype(&::cudaEventQuery) event_query = find("cudaEventQuery");
  decltype(&::cudaEventDestroy) event_destroy = find("cudaEventDestroy");
  cudaError_t (*malloc)(void**, size_t) = find("cudaMalloc");
  decltype(&::cudaFree) free = find("cudaFree");
  cudaError_t (*host_alloc)(void**, size_t, unsigned) = find("cudaHostAlloc");
  decltype(&::cudaFreeHost) free_host = find("cudaFreeHost");
  decltype(&::cudaMemsetAsync) memset_async = find("cudaMemsetAsync");
  decltype(&::cudaMemcpyAsync) memcpy_async = find("cudaMemcpyAsync");
  decltype(&::cudaPointerGetAttributes) pointer_attributes = find("cudaPointerGetAttributes");
};

struct Nccl : Symbols {
  decltype(&::ncclGetVersion) get_version = find("ncclGetVersion");
  decltype(&::ncclGetUniqueId) get_unique_id = find("ncclGetUniqueId");
  decltype(&::ncclGetErrorString) error_string = find("ncclGetErrorString");
  decltype(&::ncclGetLastError) last_error = find("ncclGetLastError");
  decltype(&::ncclCommInitRankConfig) init = find("ncclCommInitRankConfig");
  decltype(&::ncclCommSplit) split = find("ncclCommSplit");
  decltype(&::ncclCommGetAsyncError) async_error = find("ncclCommGetAsyncError");
  decltype(&::ncclCommFinalize) finalize = find("ncclCommFinalize");
  decltype(&::ncclCommDestroy) destroy = find("ncclCommDestroy");
  decltype(&::ncclCommAbort) abort = find("ncclCommAbort");
  decltype(&::ncclGroupStart) group_start = find("ncclGroupStart");
  decltype(&::ncclGroupEnd) group_end = find("ncclGroupEnd");
  decltype(&::ncclSend) send = find("ncclSend");
  decltype(&::ncclRecv) recv = find("ncclRecv");
  decltype(&::ncclAllReduce) all_reduce = find("ncclAllReduce");
  decltype(&::ncclAllGather) all_gather = find("ncclAllGather");
  decltype(&::ncclReduceScatter) reduce_scatter = find("ncclReduceScatter");
  decltype(&::ncclBroadcast) broadcast = find("ncclBroadcast");
  decltype(&::ncclReduce) reduce = find("ncclReduce");
  // Functions since 2.19; headers of 2.18 do not declare them.
  ncclResult_t (*mem_alloc)(void**, size_t) = newer("ncclMemAlloc");
  ncclResult_t (*mem_free)(void*) = newer("ncclMemFree");
  ncclResult_t (*comm_register)(ncclComm_t, void*, size_t, void**) = newer("ncclCommRegister");
  ncclResult_t (*comm_deregister)(ncclComm_t, void*) = newer("ncclCommDeregister");
  // Functions since 2.28.
  ncclResult_t (*all_to_all)(const void*, void*, size_t, ncclDataType_t, ncclComm_t,
                             cudaStream_t) = newer("ncclAlltoAll");
  ncclResult_t (*gather)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                         cudaStream_t) = newer("ncclGather");
  ncclResult_t (*scatter)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                          cudaStream_t) = newer("ncclScatter");
};

// Formats a version code: 22809 is "2.28.9".
std::string version_text(int code);

class Library {
 public:
  // Empty names select the defaults: libcudart.so of the version at build time, else any; libnccl.so.2. Throws
  // Failure(PRUN_ENOTSUP) that names the missing part in one line.
  Library(const std::string& nccl_name, const std::string& cudart_name);

  const Cuda& cuda() const { return cuda_; }
  const Nccl& nccl() const { return nccl_; }
  int version() const { return version_; }
  const std::string& text() const { return text_; }  // "NCCL 2.28.9, /usr/lib/libnccl.so.2"
  std::string cuda_text() const;                     // "CUDA runtime 13.0, driver 13.0, /usr/lib/libcudart.so.13"
  int devices() const { return devices_; }

  // Returns the failure of a call, with NCCL's last error text.
  Failure failure(const char* call, ncclResult_t error) const;
  Failure failure(const char* call, cudaError_t error) const;
  void check(const char* call, cudaError_t error) const;  // throws
  bool capturing(cudaStream_t stream) const;

 private:
  Cuda cuda_{};
  Nccl nccl_{};
  int version_ = 0, devices_ = 0;
  std::string text_, cudart_path_;
};

// While an object exists, this thread's calls do not belong to any graph capture, because event queries would
// invalidate the capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Cuda& cuda) : cuda_(cuda) { cuda_.exchange_capture_mode(&mode_); }
  ~RelaxedCapture() { cuda_.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;

 private:
  const Cuda& cuda_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Returns the files that a context would load and their versions, in one line. Throws Failure if one is missing.
std::string found_here();
// Returns why no context can be opened here, or "". Opens no device.
std::string missing_here(const std::string& nccl_name = "", const std::string& cudart_name = "");

}  // namespace prun::nccl
