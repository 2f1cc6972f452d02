// Memory: allocations for peers, reachability by NCCL, and bounce buffers for memory that it cannot reach.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "library.h"

namespace prun::nccl {

struct Region {  // the handle of mem_alloc and mem_reg
  void* ptr = nullptr;
  size_t bytes = 0;
  int kind = PRUN_MEM_HOST;
  bool own = false;        // set if mem_alloc allocated it
  bool from_nccl = false;  // set if ncclMemAlloc allocated it
};

class Memory {
 public:
  explicit Memory(const Library& library) : library_(library) {}
  ~Memory();

  Region* allocate(size_t bytes, int kind);  // zeroed; throws Failure
  Region* add(void* ptr, size_t bytes, int kind);
  void remove(void* ptr, const void* handle);
  std::vector<Region> regions();
  void leave();  // disables all frees: a free waits for the device, and hanging work may use any region
  // Returns pinned memory that a graph's copies use at every launch, valid until the end of the context.
  void* allocate_for_graph(size_t bytes);

  // Returns whether the device can access the memory directly: device, pinned or managed memory.
  bool reachable(const void* ptr);

  // Returns pinned pages for data that the device cannot reach; they are cached for reuse.
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
