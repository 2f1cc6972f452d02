// See allocation_counter.h. Forwards to glibc's own entry points, which stay visible beside a replaced malloc.
#include "tests/unit/allocation_counter.h"

#include <atomic>
#include <cerrno>

namespace {

std::atomic<bool> counting{false};
std::atomic<long> count{0};
std::atomic<size_t> largest{0};

}  // namespace

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

void note(size_t bytes) {
  if (!counting.load(std::memory_order_relaxed)) return;
  count.fetch_add(1);
  size_t seen = largest.load();
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) { return note(bytes), __libc_malloc(bytes); }
void* calloc(size_t n, size_t bytes) { return note(n * bytes), __libc_calloc(n, bytes); }
void* realloc(void* old, size_t bytes) { return note(bytes), __libc_realloc(old, bytes); }
void* memalign(size_t alignment, size_t bytes) { return note(bytes), __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return note(bytes), __libc_memalign(alignment, bytes); }
int posix_memalign(void** to, size_t alignment, size_t bytes) {
  note(bytes);
  *to = __libc_memalign(alignment, bytes);
  return *to == nullptr ? ENOMEM : 0;
}
}
#pragma GCC visibility pop

bool prun::test::allocations_are_counted() { return true; }
#else
bool prun::test::allocations_are_counted() { return false; }
#endif

void prun::test::start_counting_allocations() {
  count = 0;
  largest = 0;
  counting = true;
}

prun::test::Allocations prun::test::stop_counting_allocations() {
  counting = false;
  return {count.load(), largest.load()};
}
