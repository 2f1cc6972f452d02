// See allocation_counter.h. Forwards to glibc's own entry points, which remain callable next to a replaced malloc.
// Retained bytes are counted call by call because mallinfo counts freed chunks that malloc caches as in use.
#include "tests/unit/allocation_counter.h"

#include <malloc.h>

#include <atomic>
#include <cerrno>

namespace {

std::atomic<bool> counting{false};
std::atomic<long> count{0};
std::atomic<size_t> largest{0};
std::atomic<long> kept{0};

}  // namespace

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

void* given(void* block, size_t bytes) {
  if (block == nullptr || !counting.load(std::memory_order_relaxed)) return block;
  count.fetch_add(1);
  size_t seen = largest.load();
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
  kept.fetch_add(static_cast<long>(malloc_usable_size(block)));
  return block;
}

void* taken(void* block) {
  if (block != nullptr && counting.load(std::memory_order_relaxed))
    kept.fetch_sub(static_cast<long>(malloc_usable_size(block)));
  return block;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) { return given(__libc_malloc(bytes), bytes); }
void* calloc(size_t n, size_t bytes) { return given(__libc_calloc(n, bytes), n * bytes); }
void* realloc(void* old, size_t bytes) { return given(__libc_realloc(taken(old), bytes), bytes); }
void* memalign(size_t alignment, size_t bytes) { return given(__libc_memalign(alignment, bytes), bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return given(__libc_memalign(alignment, bytes), bytes); }
int posix_memalign(void** to, size_t alignment, size_t bytes) {
  *to = given(__libc_memalign(alignment, bytes), bytes);
  return *to == nullptr ? ENOMEM : 0;
}
void free(void* block) { __libc_free(taken(block)); }
}
#pragma GCC visibility pop

bool prun::test::allocations_are_counted() { return true; }
#else
bool prun::test::allocations_are_counted() { return false; }
#endif

void prun::test::start_counting_allocations() {
  count = 0;
  largest = 0;
  kept = 0;
  counting = true;
}

prun::test::Allocations prun::test::stop_counting_allocations() {
  counting = false;
  return {count.load(), largest.load(), kept.load()};
}
