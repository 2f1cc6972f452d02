// Memory: what peers reach fastest, what NCCL may reach at all, and the bounce buffers for what it may not.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "library.h"

namespace prun::nccl {

struct Region {  // of mem_alloc or mem_reg; the handle of both
  void* ptr = nullptr;
  size_t bytes = 0;
  int kind = PRUN_MEM_HOST;
  bool own = false;        // mem_alloc's
  bool from_nccl = false;  // ncclMemAlloc's
};

class Memory {
 public:
  explicit Memory(const Library& library) : library_(library) {}
  ~Memory();

  Region* allocate(size_t bytes, int kind);  // zeroed; throws Failure
  Region* add(void* ptr, size_t bytes, int kind);
  void remove(void* ptr, const void* handle);
  std::vector<Region> regions();
  void leave();  // frees nothing any more: freeing waits for the device, and work that hangs may use all of it
  // Pinned memory that copies of a graph use at every launch, until the end of the context.
  void* allocate_for_graph(size_t bytes);

  // Whether the device can work on it as it is: its own memory, pinned or managed.
  bool reachable(const void* ptr);

  // Pinned pages for data that the device cannot reach; kept for the next user.
  void* take_bounce(size_t bytes);
  void give_bounce(void* bounce, size_t bytes);

 private:
  static size_t size_class(size_t bytes);
  void* allocate_pinned(size_t bytes);
  void zero(void* ptr, size_t bytes);
  void release(const Region& region);

  const Library& library_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Region>> regions_;
  std::map<size_t, std::vector<void*>> idle_;
  std::vector<void*> of_graphs_;
};

}  // namespace prun::nccl
