// Entry points of the CUDA runtime, as far as the plugin and the tests use them. Nothing static is ever destroyed:
// threads may outlive main.
#include "device.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define ENTRY extern "C" __attribute__((visibility("default")))

struct cudaGraph {
  std::vector<substitute::Work> nodes;
};

namespace substitute {
namespace {

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  bool running = false;  // its thread has started
  bool closed = false;
  cudaGraph* capture = nullptr;
};

// `completed` reaches what `recorded` was when its stream gets there.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, completed = 0;
};

struct Block {
  size_t bytes;
  cudaMemoryType type;
};
struct Device {
  std::mutex mutex;
  std::map<const char*, Block> blocks;
};
Device& device() {
  static auto* instance = new Device;
  return *instance;
}

using StreamHandle = std::shared_ptr<Stream>;
using EventHandle = std::shared_ptr<Event>;

StreamHandle& of(cudaStream_t stream) {
  static auto* legacy = new StreamHandle(std::make_shared<Stream>());
  return stream == nullptr ? *legacy : *reinterpret_cast<StreamHandle*>(stream);
}
EventHandle& of(cudaEvent_t event) { return *reinterpret_cast<EventHandle*>(event); }

void run(const StreamHandle& stream) {
  std::unique_lock lock(stream->mutex);
  for (;;) {
    stream->changed.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
    if (stream->queue.empty()) return;
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

cudaError_t allocate(void** ptr, size_t bytes, cudaMemoryType type) {
  void* memory = std::aligned_alloc(4096, (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096);
  if (memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(memory, 0xa5, bytes);  // nothing is zero by chance
  std::lock_guard lock(device().mutex);
  device().blocks[static_cast<const char*>(memory)] = {bytes, type};
  *ptr = memory;
  return cudaSuccess;
}

cudaError_t release(void* ptr) {
  std::lock_guard lock(device().mutex);
  if (ptr != nullptr && device().blocks.erase(static_cast<const char*>(ptr)) == 0)
    die("memory is freed that was not allocated");
  std::free(ptr);
  return cudaSuccess;
}

const Block* block_of(const void* ptr, const char** begin) {  // under the device's lock
  auto after = device().blocks.upper_bound(static_cast<const char*>(ptr));
  if (after == device().blocks.begin()) return nullptr;
  --after;
  *begin = after->first;
  return static_cast<const char*>(ptr) < after->first + after->second.bytes ? &after->second : nullptr;
}

void synchronize(cudaStream_t stream) {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  enqueue(stream, [&] {
    std::lock_guard lock(mutex);
    over = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return over; });
}

}  // namespace

void enqueue(cudaStream_t handle, Work work) {
  const StreamHandle stream = of(handle);
  std::lock_guard lock(stream->mutex);
  if (stream->capture != nullptr) return stream->capture->nodes.push_back(std::move(work));
  stream->queue.push_back(std::move(work));
  if (!std::exchange(stream->running, true)) std::thread(run, stream).detach();
  stream->changed.notify_one();
}

bool reachable(const void* ptr, size_t bytes) {
  if (bytes == 0) return true;
  std::lock_guard lock(device().mutex);
  const char* begin = nullptr;
  const Block* block = block_of(ptr, &begin);
  return block != nullptr && static_cast<const char*>(ptr) + bytes <= begin + block->bytes;
}

void die(const char* why) {
  std::fprintf(stderr, "substitute for CUDA and NCCL: %s\n", why);
  std::abort();
}

int setting(const char* name, int otherwise) {
  const char* value = std::getenv((std::string("PRUN_SUBSTITUTE_") + name).c_str());
  return value != nullptr ? std::atoi(value) : otherwise;
}

}  // namespace substitute

using substitute::of;

ENTRY cudaError_t cudaGetDeviceCount(int* count) {
  *count = substitute::setting("DEVICES", 16);
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
ENTRY cudaError_t cudaSetDevice(int) { return cudaSuccess; }
ENTRY cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
ENTRY cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
ENTRY const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    default:
      return "an error of the substitute";
  }
}

ENTRY cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new substitute::StreamHandle(std::make_shared<substitute::Stream>()));
  return cudaSuccess;
}
// As with CUDA, what is in it still runs.
ENTRY cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  substitute::StreamHandle& handle = of(stream);
  {
    std::lock_guard lock(handle->mutex);
    handle->closed = true;
    handle->changed.notify_all();
  }
  delete &handle;
  return cudaSuccess;
}
ENTRY cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return substitute::synchronize(stream), cudaSuccess; }
ENTRY cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  substitute::enqueue(stream, [=] { function(data); });
  return cudaSuccess;
}

ENTRY cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new substitute::EventHandle(std::make_shared<substitute::Event>()));
  return cudaSuccess;
}
ENTRY cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete &of(event), cudaSuccess; }
ENTRY cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const substitute::EventHandle handle = of(event);
  uint64_t ticket = 0;
  {
    std::lock_guard lock(handle->mutex);
    ticket = ++handle->recorded;
  }
  substitute::enqueue(stream, [handle, ticket] {
    std::lock_guard lock(handle->mutex);
    handle->completed = std::max(handle->completed, ticket);
    handle->changed.notify_all();
  });
  return cudaSuccess;
}
ENTRY cudaError_t cudaEventQuery(cudaEvent_t event) {
  const substitute::EventHandle handle = of(event);
  std::lock_guard lock(handle->mutex);
  return handle->completed >= handle->recorded ? cudaSuccess : cudaErrorNotReady;
}
ENTRY cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const substitute::EventHandle handle = of(event);
  uint64_t ticket = 0;
  {
    std::lock_guard lock(handle->mutex);
    ticket = handle->recorded;
  }
  substitute::enqueue(stream, [handle, ticket] {
    std::unique_lock lock(handle->mutex);
    handle->changed.wait(lock, [&] { return handle->completed >= ticket; });
  });
  return cudaSuccess;
}

ENTRY cudaError_t cudaMalloc(void** ptr, size_t bytes) {
  return substitute::allocate(ptr, bytes, cudaMemoryTypeDevice);
}
ENTRY cudaError_t cudaFree(void* ptr) { return substitute::release(ptr); }
ENTRY cudaError_t cudaHostAlloc(void** ptr, size_t bytes, unsigned) {
  return substitute::allocate(ptr, bytes, cudaMemoryTypeHost);
}
ENTRY cudaError_t cudaFreeHost(void* ptr) { return substitute::release(ptr); }
ENTRY cudaError_t cudaMemset(void* ptr, int value, size_t bytes) {
  if (!substitute::reachable(ptr, bytes)) return cudaErrorInvalidValue;
  std::memset(ptr, value, bytes);
  return cudaSuccess;
}
// With pageable memory on a side CUDA waits, too.
ENTRY cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (substitute::reachable(to, bytes) && substitute::reachable(from, bytes)) {
    substitute::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  } else {
    substitute::synchronize(stream);
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  return cudaSuccess;
}
ENTRY cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  *attributes = {};
  const char* begin = nullptr;
  std::lock_guard lock(substitute::device().mutex);
  const substitute::Block* block = substitute::block_of(ptr, &begin);
  attributes->type = block != nullptr ? block->type : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

ENTRY cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}
ENTRY cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  substitute::StreamHandle& handle = of(stream);
  std::lock_guard lock(handle->mutex);
  *status = handle->capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
ENTRY cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  substitute::StreamHandle& handle = of(stream);
  std::lock_guard lock(handle->mutex);
  handle->capture = new cudaGraph;
  return cudaSuccess;
}
ENTRY cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  substitute::StreamHandle& handle = of(stream);
  std::lock_guard lock(handle->mutex);
  *graph = reinterpret_cast<cudaGraph_t>(std::exchange(handle->capture, nullptr));
  return cudaSuccess;
}
ENTRY cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new cudaGraph(*reinterpret_cast<cudaGraph*>(graph)));
  return cudaSuccess;
}
ENTRY cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const substitute::Work& node : reinterpret_cast<cudaGraph*>(exec)->nodes) substitute::enqueue(stream, node);
  return cudaSuccess;
}
ENTRY cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete reinterpret_cast<cudaGraph*>(graph), cudaSuccess;
}
ENTRY cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return delete reinterpret_cast<cudaGraph*>(exec), cudaSuccess;
}
