// Seconds of an op that computes, by itself on its device, and what they are spent on.
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

// batch products of [m,k]·[k,n], whose operands and results are so many bytes.
struct Product {
  double batch = 1, m = 1, n = 1, k = 1;
  double bytes = 0;
  Dtype dtype = Dtype::f32;
};
OpTime product_time(const DeviceModel& device, const Product& product);
OpTime stream_time(const DeviceModel& device, double bytes);  // a memory-bound op

// The full buffer of a collective: of gathers the result, of others what a rank brings.
double full_bytes(const Program& program, const Op& op);

// The dtype that an op computes in: of its first tensor of floats.
Dtype op_dtype(const Program& program, const Op& op);
OpTime op_time(const DeviceModel& device, const Program& program, const Op& op);

}  // namespace prun::simulate
