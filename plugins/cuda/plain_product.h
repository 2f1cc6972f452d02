// The product for sizes that cuBLASLt has no algorithm for: any size at all, a hundred times slower than it could be.
#pragma once
#include <memory>

#include "gemm.h"

namespace prun::cuda {

// `added` is as in Gemm.
std::unique_ptr<Kernel> make_plain_product(const GemmShape& shape, const void* a, const void* b, const void* added,
                                           void* c);

}  // namespace prun::cuda
