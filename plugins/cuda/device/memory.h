// The device's memory and pinned host memory of one open device. What is left is freed with it.
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
  ~Memory();  // nothing that uses it runs any more
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Aligned to 256 bytes. Failure(PRUN_ENOMEM) says how much is free and where.
  void* allocate(size_t bytes, int place);
  void release(void* ptr);
  // Host memory of others; Failure(PRUN_ENOTSUP) where its pages cannot be pinned.
  void pin(void* ptr, size_t bytes);
  void unpin(void* ptr);

 private:
  const Context& context_;
  std::map<void*, int> places_;  // prun_place of what is allocated
  std::set<void*> pinned_;
};

}  // namespace prun::cuda
