// How large this machine's caches are: what sizes of buffers and chunks are compared with.
#pragma once
#include <cstddef>

namespace prun::shm {

// Bytes of the first core's cache of that level (2 or 3), as the kernel reports it; what a usual server has if it does
// not say.
size_t cache_bytes(int level);

}  // namespace prun::shm
