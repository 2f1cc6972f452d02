// Streams are queues with a thread each, events are counters. No static is ever destroyed, because threads may outlive
// main.
#include "stream.h"

#ifdef __SSE2__
#include <pmmintrin.h>
#endif

#include <algorithm>
#include <set>
#include <utility>

#include "machine.h"

namespace substitute {
namespace {

template <class Handle>
struct Handles {
  std::mutex mutex;
  std::set<Handle*> all;

  Handle* add(Handle handle) {
    auto* made = new Handle(std::move(handle));
    std::lock_guard lock(mutex);
    all.insert(made);
    return made;
  }
  Handle get(void* which, const char* what) {
    std::lock_guard lock(mutex);
    const auto found = all.find(static_cast<Handle*>(which));
    if (found == all.end()) die(std::string(what) + " is used that was destroyed, or never made");
    return **found;
  }
  Handle remove(void* which, const char* what) {
    Handle handle = get(which, what);
    std::lock_guard lock(mutex);
    all.erase(static_cast<Handle*>(which));
    delete static_cast<Handle*>(which);
    return handle;
  }
};
Handles<StreamHandle>& streams() {
  static auto* instance = new Handles<StreamHandle>;
  return *instance;
}
Handles<EventHandle>& events() {
  static auto* instance = new Handles<EventHandle>;
  return *instance;
}
const StreamHandle& legacy() {
  static auto* instance = new StreamHandle(std::make_shared<Stream>());
  return *instance;
}

// Destroyed streams with pending work; under the lock of streams().
std::vector<StreamHandle>& closing() {
  static auto* instance = new std::vector<StreamHandle>;
  return *instance;
}

thread_local bool in_host_function = false;

// With PRUN_SUBSTITUTE_FLUSH=1 all kernels compute as if compiled by nvcc with --ftz=true: subnormals are zeros.
void flush_subnormals() {
#ifdef __SSE2__
  if (setting("FLUSH", 0) == 0) return;
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
#endif
}

void run(const StreamHandle& stream) {
  flush_subnormals();
  std::unique_lock lock(stream->mutex);
  for (;;) {
    stream->busy = !stream->queue.empty();
    stream->changed.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
    if (stream->queue.empty()) return;
    stream->busy = true;
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    ++stream->done;
    stream->finished.notify_all();
  }
}

// Waits until the present work is done; a caller that queries then finds the stream idle.
void wait_for(const StreamHandle& stream) {
  std::unique_lock lock(stream->mutex);
  stream->finished.wait(lock, [&, all = stream->added] { return stream->done >= all; });
}

// Runs a host function in a thread other than the stream's, one at a time, as CUDA may do.
void run_on_host(const Work& function) {
  static auto* one = new std::mutex;
  std::lock_guard lock(*one);
  std::thread([&] {
    in_host_function = true;
    function();
  }).join();
}

// The first `count` pieces of work of another stream.
struct Earlier {
  StreamHandle stream;
  uint64_t count;
};

// Returns the work that must precede new work of `stream` by the legacy stream's implicit order.
std::vector<Earlier> implicitly_before(const StreamHandle& stream) {
  std::vector<StreamHandle> others;
  if (stream == legacy()) {
    std::lock_guard lock(streams().mutex);
    for (StreamHandle* other : streams().all)
      if ((*other)->blocking) others.push_back(*other);
    for (const StreamHandle& other : closing())
      if (other->blocking) others.push_back(other);
  } else if (stream->blocking) {
    others.push_back(legacy());
  }
  std::vector<Earlier> before;
  for (const StreamHandle& other : others) {
    std::lock_guard lock(other->mutex);
    if (other->done < other->added) before.push_back({other, other->added});
  }
  return before;
}

// Returns whether work on the legacy stream invalidates a capture, by making it depend on a capturing blocking stream.
bool spoils_a_capture() {
  std::lock_guard lock(streams().mutex);
  std::lock_guard captures(captures_lock());
  bool spoilt = false;
  for (StreamHandle* stream : streams().all) {
    if (!(*stream)->blocking || (*stream)->capture == nullptr) continue;
    (*stream)->capture->invalid = spoilt = true;
  }
  return spoilt;
}

}  // namespace

void refuse_in_host_function() {
  if (in_host_function) die("a host function of a stream calls CUDA, which may deadlock");
}

bool is_legacy(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }
StreamHandle of(cudaStream_t stream) {
  refuse_in_host_function();
  return is_legacy(stream) ? legacy() : streams().get(stream, "a stream");
}
EventHandle of(cudaEvent_t event) {
  refuse_in_host_function();
  return events().get(event, "an event");
}

uint64_t begin_record(Event& event) {
  std::lock_guard lock(event.mutex);
  return ++event.recorded;
}
void end_record(Event& event, uint64_t ticket) {
  std::lock_guard lock(event.mutex);
  if (event.completed >= ticket) return;
  event.when = std::chrono::steady_clock::now();
  event.completed = ticket;
  event.changed.notify_all();
}

void put(const StreamHandle& stream, Work work) {
  if (std::vector<Earlier> before = implicitly_before(stream); !before.empty())
    work = [before = std::move(before), work = std::move(work)] {
      for (const Earlier& earlier : before) {
        std::unique_lock lock(earlier.stream->mutex);
        earlier.stream->finished.wait(lock, [&] { return earlier.stream->done >= earlier.count; });
      }
      work();
    };
  std::lock_guard lock(stream->mutex);
  stream->queue.push_back(std::move(work));
  ++stream->added;
  if (!std::exchange(stream->running, true)) std::thread(run, stream).detach();
  stream->changed.notify_one();
}

cudaError_t enqueue(cudaStream_t handle, Work work) {
  const StreamHandle stream = of(handle);
  if (is_legacy(handle) && spoils_a_capture()) return cudaErrorStreamCaptureImplicit;
  cudaError_t error = cudaSuccess;
  if (!take(stream, work, &error)) put(stream, std::move(work));
  return error;
}

std::function<bool()> existence(cudaStream_t stream) {
  return [handle = of(stream)] {
    std::lock_guard lock(handle->mutex);
    return !handle->closed;
  };
}

void wait(cudaStream_t stream) { wait_for(of(stream)); }

void wait_for_all_streams() {
  std::vector<StreamHandle> all = {legacy()};
  {
    std::lock_guard lock(streams().mutex);
    for (StreamHandle* stream : streams().all) all.push_back(*stream);
    std::erase_if(closing(), [](const StreamHandle& stream) {
      std::lock_guard stream_lock(stream->mutex);
      return stream->done == stream->added;
    });
    all.insert(all.end(), closing().begin(), closing().end());
  }
  for (const StreamHandle& stream : all) {
    bool idle = false;
    {
      std::lock_guard lock(stream->mutex);
      idle = stream->queue.empty() && !stream->busy;
    }
    if (!idle) wait_for(stream);
  }
}

}  // namespace substitute

using substitute::EventHandle;
using substitute::of;
using substitute::result;
using substitute::StreamHandle;

ENTRY cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) return error;
  auto made = std::make_shared<substitute::Stream>();
  made->priority = priority;
  made->blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = reinterpret_cast<cudaStream_t>(substitute::streams().add(made));
  return cudaSuccess;
}
ENTRY cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
// Pending work of a destroyed stream still runs; cudaDeviceSynchronize and cudaFree wait for it.
ENTRY cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (substitute::capturing(stream)) substitute::invalidate(stream, cudaErrorStreamCaptureInvalidated);
  const StreamHandle handle = substitute::streams().remove(stream, "a stream");
  {
    std::lock_guard lock(substitute::streams().mutex);
    substitute::closing().push_back(handle);
  }
  std::lock_guard lock(handle->mutex);
  handle->closed = true;
  handle->changed.notify_all();
  return cudaSuccess;
}
ENTRY cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (substitute::capturing(stream)) return result(substitute::invalidate(stream, cudaErrorStreamCaptureUnsupported));
  if (const cudaError_t error = substitute::refuse_in_capture(); error != cudaSuccess) return result(error);
  return substitute::wait(stream), cudaSuccess;
}
ENTRY cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (substitute::capturing(stream)) return result(substitute::invalidate(stream, cudaErrorStreamCaptureUnsupported));
  if (const cudaError_t error = substitute::refuse_in_capture(); error != cudaSuccess) return result(error);
  const StreamHandle handle = of(stream);
  std::lock_guard lock(handle->mutex);
  return result(handle->queue.empty() && !handle->busy ? cudaSuccess : cudaErrorNotReady);
}
ENTRY cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = substitute::refuse_in_capture(); error != cudaSuccess) return result(error);
  return substitute::wait_for_all_streams(), cudaSuccess;
}
ENTRY cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return result(substitute::enqueue(stream, [=] { substitute::run_on_host([=] { function(data); }); }));
}

ENTRY cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto made = std::make_shared<substitute::Event>();
  made->timed = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(substitute::events().add(made));
  return cudaSuccess;
}
ENTRY cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
ENTRY cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return substitute::events().remove(event, "an event"), cudaSuccess;
}
// In a capture: a fork or join point of its streams, or with the flag cudaEventRecordExternal a node.
ENTRY cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  const EventHandle handle = of(event);
  const StreamHandle on = of(stream);
  if (flags == cudaEventRecordExternal) return result(substitute::take_record(on, handle));
  {
    std::lock_guard lock(substitute::captures_lock());
    if (on->capture != nullptr) {
      if (on->capture->invalid) return result(cudaErrorStreamCaptureInvalidated);
      handle->capture = on->capture;
      handle->last = on->last;
      return cudaSuccess;
    }
    handle->capture = nullptr;
  }
  const uint64_t ticket = substitute::begin_record(*handle);
  return result(substitute::enqueue(stream, [handle, ticket] { substitute::end_record(*handle, ticket); }));
}
ENTRY cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

static cudaError_t refuse_captured(const EventHandle& event) {
  {
    std::lock_guard lock(substitute::captures_lock());
    if (event->capture != nullptr) {
      event->capture->invalid = true;
      return cudaErrorCapturedEvent;
    }
  }
  return substitute::refuse_in_capture();
}
ENTRY cudaError_t cudaEventQuery(cudaEvent_t event) {
  const EventHandle handle = of(event);
  if (const cudaError_t error = refuse_captured(handle); error != cudaSuccess) return result(error);
  std::lock_guard lock(handle->mutex);
  return result(handle->completed >= handle->recorded ? cudaSuccess : cudaErrorNotReady);
}
ENTRY cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const EventHandle handle = of(event);
  if (const cudaError_t error = refuse_captured(handle); error != cudaSuccess) return result(error);
  std::unique_lock lock(handle->mutex);
  handle->changed.wait(lock, [&] { return handle->completed >= handle->recorded; });
  return cudaSuccess;
}
ENTRY cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  struct Seen {
    bool timed, done;
    std::chrono::steady_clock::time_point when;
  };
  const auto look = [](const EventHandle& event) {  // sequentially, because both may be the same
    std::lock_guard lock(event->mutex);
    return Seen{event->timed, event->completed >= event->recorded, event->when};
  };
  for (cudaEvent_t event : {from, to})
    if (const cudaError_t error = refuse_captured(of(event)); error != cudaSuccess) return result(error);
  const Seen a = look(of(from)), b = look(of(to));
  if (!a.timed || !b.timed) return result(cudaErrorInvalidResourceHandle);
  const std::chrono::steady_clock::time_point never;
  if (a.when == never || b.when == never) return result(cudaErrorInvalidResourceHandle);
  if (!a.done || !b.done) return result(cudaErrorNotReady);
  *ms = std::chrono::duration<float, std::milli>(b.when - a.when).count();
  return cudaSuccess;
}
