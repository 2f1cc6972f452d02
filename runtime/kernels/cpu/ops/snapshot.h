// A copy whose destination the next kernels do not read, for example a checkpoint's.
#pragma once
#include <cstdint>
#include <memory>

#include "device/device.h"

namespace prun::cpu {

// Copies `bytes` bytes on `threads` threads. The ranges must not overlap.
std::unique_ptr<Kernel> make_snapshot(const void* from, void* to, int64_t bytes, int threads);

}  // namespace prun::cpu
