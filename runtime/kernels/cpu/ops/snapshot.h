// A copy that the next kernels do not read.
#pragma once
#include <cstdint>
#include <memory>

#include "device/device.h"

namespace prun::cpu {

// Copies so many bytes with as many threads. They may overlap no other's.
std::unique_ptr<Kernel> make_snapshot(const void* from, void* to, int64_t bytes, int threads);

}  // namespace prun::cpu
