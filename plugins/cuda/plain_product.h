// The product for sizes that cuBLASLt has no algorithm for: any size at all, a hundred times slower than it could be.
#pragma once
#include <memory>

#include "gemm.h"

namespace prun::cuda {

std::unique_ptr<Kernel> make_plain_product(const GemmShape& shape, const void* a, const void* b, void* c);

}  // namespace prun::cuda
