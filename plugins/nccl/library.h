// The CUDA runtime and NCCL, loaded when a context is opened: the plugin itself loads on machines that have neither,
// and one build serves NCCL 2.18 and newer. What newer versions add is null where the loaded one lacks it.
//
// Surprising fact: which of several installed libraries the loader took is the first question of most reports about
// NCCL. So every failure ends with the version and the file that was really loaded.
#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <prun/sdk/failure.h>

#include <string>

namespace prun::nccl {

using sdk::Failure;

struct Cuda {
  decltype(&::cudaGetDeviceCount) get_device_count;
  decltype(&::cudaSetDevice) set_device;
  decltype(&::cudaDeviceGetAttribute) device_attribute;
  decltype(&::cudaRuntimeGetVersion) runtime_version;
  decltype(&::cudaDriverGetVersion) driver_version;
  decltype(&::cudaGetErrorString) error_string;
  decltype(&::cudaStreamCreateWithFlags) stream_create;
  decltype(&::cudaStreamDestroy) stream_destroy;
  decltype(&::cudaStreamSynchronize) stream_synchronize;
  decltype(&::cudaStreamWaitEvent) stream_wait_event;
  decltype(&::cudaStreamIsCapturing) stream_is_capturing;
  decltype(&::cudaThreadExchangeStreamCaptureMode) exchange_capture_mode;
  cudaError_t (*event_create)(cudaEvent_t*, unsigned);
  cudaError_t (*event_record)(cudaEvent_t, cudaStream_t);
  decltype(&::cudaEventQuery) event_query;
  decltype(&::cudaEventDestroy) event_destroy;
  cudaError_t (*malloc)(void**, size_t);
  decltype(&::cudaFree) free;
  cudaError_t (*host_alloc)(void**, size_t, unsigned);
  decltype(&::cudaFreeHost) free_host;
  decltype(&::cudaMemsetAsync) memset_async;
  decltype(&::cudaMemcpyAsync) memcpy_async;
  decltype(&::cudaPointerGetAttributes) pointer_attributes;
};

struct Nccl {
  decltype(&::ncclGetVersion) get_version;
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclGetErrorString) error_string;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclCommInitRankConfig) init;
  decltype(&::ncclCommSplit) split;
  decltype(&::ncclCommGetAsyncError) async_error;
  decltype(&::ncclCommFinalize) finalize;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclCommAbort) abort;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) recv;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclReduce) reduce;
  // Since 2.19; headers of 2.18 do not declare them.
  ncclResult_t (*mem_alloc)(void**, size_t);
  ncclResult_t (*mem_free)(void*);
  ncclResult_t (*comm_register)(ncclComm_t, void*, size_t, void**);
  ncclResult_t (*comm_deregister)(ncclComm_t, void*);
  // Since 2.28.
  ncclResult_t (*all_to_all)(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
  ncclResult_t (*gather)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  ncclResult_t (*scatter)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
};

// "2.28.9" of 22809.
std::string version_text(int code);

class Library {
 public:
  // Empty names are the system's: libcudart.so of the version that this was built with, or any; libnccl.so.2.
  // Throws Failure(PRUN_ENOTSUP): what is missing, in one line.
  Library(const std::string& nccl_name, const std::string& cudart_name);

  const Cuda& cuda() const { return cuda_; }
  const Nccl& nccl() const { return nccl_; }
  int version() const { return version_; }
  const std::string& text() const { return text_; }  // "NCCL 2.28.9, /usr/lib/libnccl.so.2"
  std::string cuda_text() const;                     // "CUDA runtime 13.0, driver 13.0, /usr/lib/libcudart.so.13"
  int devices() const { return devices_; }

  // The failure of a call, with NCCL's own words about it.
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

// While it lives, this thread's calls do not count as part of anybody's capture of a graph: event queries would spoil
// it.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Cuda& cuda) : cuda_(cuda) { cuda_.exchange_capture_mode(&mode_); }
  ~RelaxedCapture() { cuda_.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;

 private:
  const Cuda& cuda_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The files that a context would use here and their versions, in one line; where nothing is missing.
std::string found_here();
// Without loading more than it must: why no context can be opened here, or "".
std::string missing_here(const std::string& nccl_name = "", const std::string& cudart_name = "");

}  // namespace prun::nccl
