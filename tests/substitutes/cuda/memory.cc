// Every allocation ends at a protected page, so that a kernel that accesses memory beyond it faults there; the up to
// 255 bytes between them, for the alignment, have a pattern that is checked later. Fresh memory is full of NaNs.
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "capture.h"
#include "machine.h"
#include "stream.h"

namespace substitute {
namespace {

constexpr size_t kPage = 4096, kAlignment = 256, kMost = size_t{1} << 47;  // limit of addresses
constexpr int kFresh = 0xff, kGuard = 0xa7;

struct Block {
  size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeDevice;
  int device = 0;
  bool owned = true;  // false: registered
  char* map = nullptr;
  size_t map_bytes = 0;
};

struct Memory {
  std::mutex mutex;
  std::map<const char*, Block> blocks;
  std::map<int, size_t> used;  // of each device
  std::set<int> contexts;

  // Returns the block that contains ptr; under the lock.
  const Block* find(const void* ptr, const char** begin) const {
    auto after = blocks.upper_bound(static_cast<const char*>(ptr));
    if (after == blocks.begin()) return nullptr;
    --after;
    *begin = after->first;
    return static_cast<const char*>(ptr) < after->first + after->second.bytes ? &after->second : nullptr;
  }
};
Memory& memory() {
  static auto* instance = new Memory;  // never destroyed: threads may outlive main
  return *instance;
}

size_t up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

cudaError_t allocate(void** ptr, size_t bytes, cudaMemoryType type) {
  *ptr = nullptr;
  refuse_in_host_function();
  if (const cudaError_t error = refuse_in_capture(); error != cudaSuccess) return result(error);
  if (bytes == 0) return cudaSuccess;
  if (bytes > kMost) return result(cudaErrorMemoryAllocation);
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) return error;
  Block block{bytes, type, current_device()};
  std::lock_guard lock(memory().mutex);
  size_t& used = memory().used[block.device];
  if (type == cudaMemoryTypeDevice && used + bytes > memory_bytes()) return result(cudaErrorMemoryAllocation);
  const size_t data = up(up(bytes, kAlignment), kPage);
  block.map_bytes = data + kPage;
  void* map =
      mmap(nullptr, block.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return result(cudaErrorMemoryAllocation);
  block.map = static_cast<char*>(map);
  mprotect(block.map + data, kPage, PROT_NONE);
  char* begin = block.map + data - up(bytes, kAlignment);
  std::memset(block.map, kGuard, static_cast<size_t>(begin - block.map));
  std::memset(begin, kFresh, bytes);
  std::memset(begin + bytes, kGuard, up(bytes, kAlignment) - bytes);
  memory().blocks[begin] = block;
  if (type == cudaMemoryTypeDevice) used += bytes;
  *ptr = begin;
  return cudaSuccess;
}

void check_guard(const char* begin, const Block& block, const char* when) {
  const char* end = block.map + block.map_bytes - kPage;
  const auto whole = [](const char* from, const char* to) {
    return std::all_of(from, to, [](char c) { return c == static_cast<char>(kGuard); });
  };
  if (!whole(block.map, begin))
    die("something was written before " + std::to_string(block.bytes) + " bytes of memory, seen " + when);
  if (!whole(begin + block.bytes, end))
    die("something was written behind " + std::to_string(block.bytes) + " bytes of memory, seen " + when);
}

// Waits for the device, as CUDA does.
cudaError_t release(void* ptr, cudaMemoryType type) {
  if (ptr == nullptr) return cudaSuccess;
  refuse_in_host_function();
  if (const cudaError_t error = refuse_in_capture(); error != cudaSuccess) return result(error);
  wait_for_all_streams();
  std::lock_guard lock(memory().mutex);
  const auto found = memory().blocks.find(static_cast<const char*>(ptr));
  if (found == memory().blocks.end() || !found->second.owned || found->second.type != type)
    die("memory is freed that was not allocated, or not so");
  check_guard(found->first, found->second, "when it is freed");
  if (type == cudaMemoryTypeDevice) memory().used[found->second.device] -= found->second.bytes;
  munmap(found->second.map, found->second.map_bytes);
  memory().blocks.erase(found);
  return cudaSuccess;
}

// Returns the kind of memory in the terms of CUDA's table "API synchronization behavior"; registered memory is pinned.
cudaMemoryType type_of(const void* ptr, size_t bytes) {
  if (bytes == 0) return cudaMemoryTypeDevice;
  std::lock_guard lock(memory().mutex);
  const char* begin = nullptr;
  const Block* block = memory().find(ptr, &begin);
  const bool whole = block != nullptr && static_cast<const char*>(ptr) + bytes <= begin + block->bytes;
  return whole ? block->type : cudaMemoryTypeUnregistered;
}

// CUDA guarantees no time for unordered work. On the legacy stream, with which prun's streams are not ordered, it runs
// late, so that a missing synchronization shows.
cudaError_t enqueue_late(cudaStream_t stream, Work work) {
  if (!is_legacy(stream)) return enqueue(stream, std::move(work));
  return enqueue(stream, [work = std::move(work)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    work();
  });
}

// Returns whether all of a copy is in the allocation in which it begins.
bool inside(const void* ptr, size_t bytes) {
  std::lock_guard lock(memory().mutex);
  const char* begin = nullptr;
  const Block* block = memory().find(ptr, &begin);
  return block == nullptr || static_cast<const char*>(ptr) + bytes <= begin + block->bytes;
}

}  // namespace

void check_guards(const char* when) {
  std::lock_guard lock(memory().mutex);
  for (const auto& [begin, block] : memory().blocks)
    if (block.owned) check_guard(begin, block, when);
}

void make_context(int device) {
  std::lock_guard lock(memory().mutex);
  if (memory().contexts.insert(device).second)
    memory().used[device] += static_cast<size_t>(setting("CONTEXT_MIB", 0)) << 20;
}

size_t used_bytes(int device) {
  std::lock_guard lock(memory().mutex);
  return memory().used[device];
}

bool reachable(const void* ptr, size_t bytes) {
  if (bytes == 0) return true;
  std::lock_guard lock(memory().mutex);
  const char* begin = nullptr;
  const Block* block = memory().find(ptr, &begin);
  return block != nullptr && static_cast<const char*>(ptr) + bytes <= begin + block->bytes;
}

}  // namespace substitute

using substitute::memory;
using substitute::result;

ENTRY cudaError_t cudaMalloc(void** ptr, size_t bytes) {
  return substitute::allocate(ptr, bytes, cudaMemoryTypeDevice);
}
ENTRY cudaError_t cudaFree(void* ptr) { return substitute::release(ptr, cudaMemoryTypeDevice); }
ENTRY cudaError_t cudaHostAlloc(void** ptr, size_t bytes, unsigned) {
  return substitute::allocate(ptr, bytes, cudaMemoryTypeHost);
}
ENTRY cudaError_t cudaFreeHost(void* ptr) { return substitute::release(ptr, cudaMemoryTypeHost); }
ENTRY cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard lock(memory().mutex);
  *total = substitute::memory_bytes();
  *free = *total - memory().used[substitute::current_device()];
  return cudaSuccess;
}

ENTRY cudaError_t cudaHostRegister(void* ptr, size_t bytes, unsigned) {
  if (ptr == nullptr || bytes == 0) return result(cudaErrorInvalidValue);
  std::lock_guard lock(memory().mutex);
  const char *begin = nullptr, *first = static_cast<const char*>(ptr);
  const auto next = memory().blocks.lower_bound(first);
  if (memory().find(ptr, &begin) != nullptr || (next != memory().blocks.end() && next->first < first + bytes))
    return result(cudaErrorHostMemoryAlreadyRegistered);
  memory().blocks[first] = {bytes, cudaMemoryTypeHost, 0, false};
  return cudaSuccess;
}
ENTRY cudaError_t cudaHostUnregister(void* ptr) {
  std::lock_guard lock(memory().mutex);
  const auto found = memory().blocks.find(static_cast<const char*>(ptr));
  if (found == memory().blocks.end() || found->second.owned) return result(cudaErrorHostMemoryNotRegistered);
  memory().blocks.erase(found);
  return cudaSuccess;
}
ENTRY cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  *attributes = {};
  const char* begin = nullptr;
  std::lock_guard lock(memory().mutex);
  const substitute::Block* block = memory().find(ptr, &begin);
  attributes->type = block != nullptr ? block->type : cudaMemoryTypeUnregistered;
  if (block == nullptr) return cudaSuccess;
  attributes->device = block->device;
  attributes->devicePointer = const_cast<void*>(ptr);
  if (block->type == cudaMemoryTypeHost) attributes->hostPointer = const_cast<void*>(ptr);
  return cudaSuccess;
}

// A graph cannot copy pageable memory, which may be freed before its launch.
ENTRY cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  using substitute::type_of;
  if (!substitute::inside(to, bytes) || !substitute::inside(from, bytes)) return result(cudaErrorInvalidValue);
  const cudaMemoryType target = type_of(to, bytes), source = type_of(from, bytes);
  const bool pageable = target == cudaMemoryTypeUnregistered || source == cudaMemoryTypeUnregistered;
  const bool captured = substitute::capturing(stream);
  if (captured && pageable) return result(substitute::invalidate(stream, cudaErrorStreamCaptureUnsupported));
  if (source == cudaMemoryTypeUnregistered && target == cudaMemoryTypeDevice) {
    // CUDA stages it after a synchronization with the stream. The data is on the device only when the stream reaches
    // it.
    substitute::wait(stream);
    const char* begin = static_cast<const char*>(from);
    return result(substitute::enqueue_late(stream, [to, staged = std::vector<char>(begin, begin + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    }));
  }
  const cudaError_t error = substitute::enqueue(stream, [=] {
    if (bytes > 0) std::memmove(to, from, bytes);
  });
  // A copy between host memory, pinned or not, is synchronous; CUDA allows every copy to or from pageable memory to be.
  const bool waits = pageable || (target != cudaMemoryTypeDevice && source != cudaMemoryTypeDevice);
  if (error == cudaSuccess && waits && !captured) substitute::wait(stream);
  return result(error);
}
// Returns before the data is on the device if the source is pageable memory, or the device's own.
ENTRY cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = substitute::refuse_in_capture(); error != cudaSuccess) return result(error);
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  const bool waits =
      substitute::type_of(to, bytes) != cudaMemoryTypeDevice || substitute::type_of(from, bytes) == cudaMemoryTypeHost;
  if (error == cudaSuccess && waits) substitute::wait(nullptr);
  return error;
}
ENTRY cudaError_t cudaMemsetAsync(void* ptr, int value, size_t bytes, cudaStream_t stream) {
  if (!substitute::reachable(ptr, bytes)) return result(cudaErrorInvalidValue);
  return result(substitute::enqueue_late(stream, [=] { std::memset(ptr, value, bytes); }));
}
// Asynchronous for device memory, despite its name.
ENTRY cudaError_t cudaMemset(void* ptr, int value, size_t bytes) {
  if (const cudaError_t error = substitute::refuse_in_capture(); error != cudaSuccess) return result(error);
  const cudaError_t error = cudaMemsetAsync(ptr, value, bytes, nullptr);
  if (error == cudaSuccess && substitute::type_of(ptr, bytes) == cudaMemoryTypeHost) substitute::wait(nullptr);
  return error;
}
