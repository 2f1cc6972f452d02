// Memory of the plugin. Bounce buffers have power-of-two sizes, so that a few buffers serve all requests.
#include "memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace prun::nccl {

Memory::~Memory() {
  for (const auto& region : regions_) release(*region);
  for (const auto& [bytes, bounces] : idle_)
    for (void* bounce : bounces) library_.cuda().free_host(bounce);
  for (void* pinned : of_graphs_) library_.cuda().free_host(pinned);
}

void* Memory::allocate_pinned(size_t bytes) {
  void* pinned = nullptr;
  library_.check("cudaHostAlloc",
                 library_.cuda().host_alloc(&pinned, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
  return pinned;
}

// Zeroes on a stream and waits, because cudaMemset is asynchronous for device memory and our streams are not ordered
// with the legacy stream.
void Memory::zero(void* ptr, size_t bytes) {
  const Cuda& cuda = library_.cuda();
  cudaStream_t stream = nullptr;
  library_.check("cudaStreamCreateWithFlags", cuda.stream_create(&stream, cudaStreamNonBlocking));
  cudaError_t error = cuda.memset_async(ptr, 0, bytes, stream);
  if (error == cudaSuccess) error = cuda.stream_synchronize(stream);
  cuda.stream_destroy(stream);
  library_.check("cudaMemsetAsync", error);
}

Region* Memory::allocate(size_t bytes, int kind) {
  auto region = std::make_unique<Region>(Region{nullptr, bytes, kind, true, false});
  const size_t room = std::max<size_t>(bytes, 1);
  if (kind == PRUN_MEM_HOST) {
    region->ptr = allocate_pinned(room);
    std::memset(region->ptr, 0, room);
  } else {
    // ncclMemAlloc provides the alignment and the handles that zero-copy paths require.
    region->from_nccl = library_.nccl().mem_alloc != nullptr;
    if (region->from_nccl) {
      const ncclResult_t error = library_.nccl().mem_alloc(&region->ptr, room);
      if (error != ncclSuccess) throw library_.failure("ncclMemAlloc", error);
    } else {
      library_.check("cudaMalloc", library_.cuda().malloc(&region->ptr, room));
    }
    zero(region->ptr, room);
  }
  std::lock_guard lock(mutex_);
  regions_.push_back(std::move(region));
  return regions_.back().get();
}

Region* Memory::add(void* ptr, size_t bytes, int kind) {
  std::lock_guard lock(mutex_);
  regions_.push_back(std::make_unique<Region>(Region{ptr, bytes, kind, false, false}));
  return regions_.back().get();
}

void Memory::remove(void* ptr, const void* handle) {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const auto& r) {
    return r.get() == handle || (handle == nullptr && r->ptr == ptr);
  });
  if (found == regions_.end()) return;
  release(**found);
  regions_.erase(found);
}

void Memory::leave() {
  std::lock_guard lock(mutex_);
  regions_.clear();
  idle_.clear();
  of_graphs_.clear();
}

void Memory::release(const Region& region) {
  if (!region.own || region.ptr == nullptr) return;
  if (region.from_nccl)
    library_.nccl().mem_free(region.ptr);
  else if (region.kind == PRUN_MEM_HOST)
    library_.cuda().free_host(region.ptr);
  else
    library_.cuda().free(region.ptr);
}

std::vector<Region> Memory::regions() {
  std::lock_guard lock(mutex_);
  std::vector<Region> all;
  for (const auto& region : regions_) all.push_back(*region);
  return all;
}

bool Memory::reachable(const void* ptr) {
  {
    std::lock_guard lock(mutex_);
    for (const auto& r : regions_)
      if (r->own && ptr >= r->ptr && ptr < static_cast<const char*>(r->ptr) + r->bytes) return true;
  }
  // Newer runtimes write a longer struct than older headers declare.
  union {
    cudaPointerAttributes attributes;
    char room[256];
  } answer{};
  if (library_.cuda().pointer_attributes(&answer.attributes, ptr) != cudaSuccess) return false;
  return answer.attributes.type != cudaMemoryTypeUnregistered;
}

size_t Memory::size_class(size_t bytes) { return std::bit_ceil(std::max<size_t>(bytes, 256)); }

void* Memory::take_bounce(size_t bytes) {
  const size_t room = size_class(bytes);
  {
    std::lock_guard lock(mutex_);
    std::vector<void*>& idle = idle_[room];
    if (!idle.empty()) {
      void* bounce = idle.back();
      idle.pop_back();
      return bounce;
    }
  }
  return allocate_pinned(room);
}

void* Memory::allocate_for_graph(size_t bytes) {
  void* pinned = allocate_pinned(std::max<size_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  of_graphs_.push_back(pinned);
  return pinned;
}

void Memory::give_bounce(void* bounce, size_t bytes) {
  std::lock_guard lock(mutex_);
  idle_[size_class(bytes)].push_back(bounce);
}

}  // namespace prun::nccl
