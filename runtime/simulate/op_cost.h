// Seconds of a compute op running alone on its device, and the resource that bounds it.
#pragma once
#include <vector>

#include "ir/program.h"
#include "simulate/cluster.h"

namespace prun::simulate {

enum class Bound : uint8_t { nothing, compute, memory, launch };

struct OpTime {
  double seconds = 0;
  Bound bound = Bound::nothing;
  double flops = 0;
};

// A batch of GEMMs [m,k]·[k,n]. `bytes`: total size of operands and results.
struct Product {
  double batch = 1, m = 1, n = 1, k = 1;
  double bytes = 0;
  Dtype dtype = Dtype::f32;
};
OpTime product_time(const DeviceModel& device, const Product& product);
OpTime stream_time(const DeviceModel& device, double bytes);  // a memory-bound op

// Returns the size of a collective's full buffer: the result of gathers, the operand of all others.
double full_bytes(const Program& program, const Op& op);

// Returns the dtype that an op computes in: that of its first float tensor.
Dtype op_dtype(const Program& program, const Op& op);
OpTime op_time(const DeviceModel& device, const Program& program, const Op& op);

}  // namespace prun::simulate
