// The device memory and the pinned host memory of one open device. The destructor frees all of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "prun/device.h"

namespace prun::cuda {

class Context;

class Memory {
 public:
  explicit Memory(const Context& context) : context_(context) {}
  ~Memory();  // no work may still use it
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Returns memory aligned to 256 bytes. Failure(PRUN_ENOMEM) reports the amount and the location of free memory.
  void* allocate(size_t bytes, int place);
  void release(void* ptr);
  // Pins host memory of other owners; throws Failure(PRUN_ENOTSUP) if its pages cannot be pinned.
  void pin(void* ptr, size_t bytes);
  void unpin(void* ptr);

 private:
  const Context& context_;
  std::map<void*, int> places_;  // prun_place of each allocation
  std::set<void*> pinned_;
};

}  // namespace prun::cuda
