#include "memory.h"

#include <fmt/format.h>

#include <iterator>
#include <string>

#include "context.h"

namespace prun::cuda {
namespace {

// Returns "1.5 GiB".
std::string size_text(size_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

[[noreturn]] void no_room(const Context& context, size_t bytes, int place) {
  cudaGetLastError();
  if (place == PRUN_PLACE_PINNED)
    throw Failure(PRUN_ENOMEM, fmt::format("no {} of pinned host memory", size_text(bytes)));
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  throw Failure(PRUN_ENOMEM, fmt::format("no {} on GPU {} ({}): {} of its {} are free", size_text(bytes),
                                         context.index(), context.name(), size_text(free), size_text(total)));
}

void free_at(void* ptr, int place) { place == PRUN_PLACE_PINNED ? cudaFreeHost(ptr) : cudaFree(ptr); }

}  // namespace

Memory::~Memory() {
  for (void* ptr : pinned_) cudaHostUnregister(ptr);
  for (const auto& [ptr, place] : places_) free_at(ptr, place);
}

void* Memory::allocate(size_t bytes, int place) {
  if (place != PRUN_PLACE_DEVICE && place != PRUN_PLACE_PINNED)
    throw Failure(PRUN_EINVAL, fmt::format("there is no place {}", place));
  if (bytes == 0) bytes = 1;  // a unique pointer, as malloc returns
  void* ptr = nullptr;
  // Portable memory is pinned for every context of the process, so that a transport's copies on another device are
  // fast, too.
  const cudaError_t error =
      place == PRUN_PLACE_PINNED ? cudaHostAlloc(&ptr, bytes, cudaHostAllocPortable) : cudaMalloc(&ptr, bytes);
  if (error == cudaErrorMemoryAllocation) no_room(context_, bytes, place);
  check(error, place == PRUN_PLACE_PINNED ? "cudaHostAlloc" : "cudaMalloc");
  places_.emplace(ptr, place);
  return ptr;
}

void Memory::release(void* ptr) {
  const auto found = places_.find(ptr);
  if (found == places_.end()) return;
  free_at(ptr, found->second);
  places_.erase(found);
}

void Memory::pin(void* ptr, size_t bytes) {
  const cudaError_t error = cudaHostRegister(ptr, bytes, cudaHostRegisterPortable);
  if (error == cudaErrorHostMemoryAlreadyRegistered) {  // a transport that pins its own memory has registered it
    cudaGetLastError();
    return;
  }
  if (error == cudaErrorNotSupported) {
    cudaGetLastError();
    throw Failure(PRUN_ENOTSUP, "this host memory cannot be pinned (cudaHostRegister)");
  }
  check(error, "cudaHostRegister");
  pinned_.insert(ptr);
}

void Memory::unpin(void* ptr) {
  if (pinned_.erase(ptr) != 0) cudaHostUnregister(ptr);
}

}  // namespace prun::cuda
