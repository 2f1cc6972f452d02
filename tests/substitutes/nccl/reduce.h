// Reductions as NCCL computes them: in the type itself, and averages of floats by scaling the inputs.
#pragma once
#include <nccl.h>

#include <cstddef>
#include <vector>

namespace substitute {

size_t bytes_of(ncclDataType_t type);
// Computes out = inputs[0] op inputs[1] op ...; out may alias an input.
void reduce(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& inputs, size_t count, char* out);

}  // namespace substitute
